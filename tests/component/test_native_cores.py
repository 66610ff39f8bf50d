"""A native step takes the cores that others leave, and gives them back."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import cast

import pytest

from tests.support.models.model_oracle import SHAPES, Sequences, load_engine, prepare, random_model
from twinpool.engine.kernels.cores import SharedCores
from twinpool.engine.kernels.native.kernel import NativeKernel
from twinpool.engine.runner import Engine

NUM_CPUS = 3


class Ledger:
    """The worker's own slot, and another's."""

    def __init__(self, folder: Path) -> None:
        self.own, self._other = (SharedCores.claim(NUM_CPUS, 1, folder) for _ in range(2))
        assert self.own is not None
        assert self._other is not None
        slots = ctypes.c_int64 * self.own.num_slots
        self._slots = slots.from_address(self.own.address)

    def other_has(self, threads: int, until_s: float = 60.0) -> None:
        """Another worker computes, or did until some seconds ago."""
        assert self._other is not None
        self._slots[self._other.own] = int((time.monotonic() + until_s) * 1e6) << 8 | threads

    def own_word(self) -> int:
        assert self.own is not None
        return self._slots[self.own.own]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def engine(tmp_path: Path, ledger: Ledger) -> Engine:
    folder = tmp_path / "model"
    folder.mkdir()
    return load_engine(
        prepare(random_model(SHAPES["grouped-query"]), folder),
        kernels="native",
        threads=NUM_CPUS,
        cores=ledger.own,
    )


def threads_of_a_step(engine: Engine) -> int:
    Sequences(engine).step([(list(range(20)), 0, range(5))])
    return cast("NativeKernel", engine.kernel).num_threads


def test_alone_it_takes_all(engine: Engine) -> None:
    assert threads_of_a_step(engine) == NUM_CPUS


def test_it_takes_what_another_leaves_and_its_share_in_any_case(engine: Engine, ledger: Ledger) -> None:
    for theirs, ours in ((1, 2), (2, 1), (3, 1), (7, 1), (0, 3)):
        ledger.other_has(theirs)
        assert threads_of_a_step(engine) == ours


def test_what_a_dead_worker_had_is_free_again(engine: Engine, ledger: Ledger) -> None:
    ledger.other_has(2, until_s=-1.0)
    assert threads_of_a_step(engine) == NUM_CPUS


def test_after_a_step_it_keeps_them_for_a_moment(engine: Engine, ledger: Ledger) -> None:
    before = time.monotonic()
    threads_of_a_step(engine)
    after = time.monotonic()
    until = (ledger.own_word() >> 8) / 1e6
    assert before < until - 0.003 < after
    assert ledger.own_word() & 0xFF == NUM_CPUS


def test_the_number_of_threads_changes_no_bit(engine: Engine, ledger: Ledger) -> None:
    logits = []
    for theirs in (0, 1, 2):
        ledger.other_has(theirs)
        logits.append(Sequences(engine).step([(list(range(40)), 0, range(10))])[0])
    assert logits[0].equal(logits[1])
    assert logits[0].equal(logits[2])
