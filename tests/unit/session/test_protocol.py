"""Processes of two versions of Twinpool speak the newest protocol that both know, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from twinpool.config import EngineConfig, HandoffConfig
from twinpool.engine.fingerprint import layout_fingerprint
from twinpool.engine.kernels.port import KernelFacts
from twinpool.kv.layout import KvLayout
from twinpool.protocol import HANDOFF, SESSION, Versions
from twinpool.serving.survivors import fits
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffRefused
from twinpool.types import Pool
from twinpool.worker.actor import Introduction
from twinpool.worker.spec import WorkerSpec

LAYOUT = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, dtype="bfloat16")
KERNEL = KernelFacts("native avx2", "int4", "native 1")
IDENTITY = Identity("a", "secret", layout_fingerprint(LAYOUT, KERNEL, weights_digest="ab12", rope_theta=1e5))
SPEC = WorkerSpec(
    worker_id="decode-0",
    pool=Pool.DECODE,
    incarnation="decode-0-aa",
    model_folder="/models/tiny",
    model_digest="ab12",
    dtype="float32",
    threads=1,
    engine=EngineConfig(),
    handoff=HandoffConfig(),
    secret="a secret",
)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        (Versions(1, 1), Versions(1, 1), 1),
        (Versions(1, 3), Versions(2, 5), 3),
        (Versions(2, 5), Versions(1, 3), 3),
        (Versions(1, 2), Versions(2, 2), 2),
        (Versions(3, 4), Versions(1, 2), None),
        (Versions(1, 2), Versions(3, 4), None),
        (Versions(1, 2), Versions(), None),
    ],
)
def test_the_newest_that_both_speak(ours: Versions, theirs: Versions, common: int | None) -> None:
    assert ours.common(theirs) == common


def test_a_newer_sender_that_still_speaks_ours_is_let_in() -> None:
    hello = IDENTITY.hello() | {"protocol": [HANDOFF.newest, HANDOFF.newest + 3]}
    assert IDENTITY.check(hello) == "a"


@pytest.mark.parametrize("protocol", [None, 1, "1", [], [1], ["1", "2"], [HANDOFF.newest + 1] * 2])
def test_a_sender_that_speaks_nothing_of_ours_is_refused(protocol: object) -> None:
    with pytest.raises(HandoffRefused, match="protocol"):
        IDENTITY.check(IDENTITY.hello() | {"protocol": protocol})


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, model_digest="cd34"),
        replace(SPEC, dtype="bfloat16"),
        replace(SPEC, threads=2),
        replace(SPEC, pool=Pool.PREFILL),
        replace(SPEC, engine=EngineConfig(prefill_budget_tokens=128)),
        replace(SPEC, handoff=HandoffConfig(checksum=True)),
    ],
)
def test_another_worker_has_another_fingerprint(other: WorkerSpec) -> None:
    assert other.fingerprint != SPEC.fingerprint


def test_another_life_has_the_same_fingerprint() -> None:
    assert (
        replace(SPEC, incarnation="decode-0-bb", secret="x", log_level="debug").fingerprint
        == SPEC.fingerprint
    )


def test_a_setting_that_only_a_newer_version_knows_changes_nothing_at_its_default() -> None:
    @dataclass(frozen=True, kw_only=True)
    class NewerConfig(EngineConfig):
        window: int = 0

    assert replace(SPEC, engine=NewerConfig()).fingerprint == SPEC.fingerprint
    assert replace(SPEC, engine=NewerConfig(window=9)).fingerprint != SPEC.fingerprint


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({}, True),
        ({"session": (SESSION.oldest, SESSION.newest + 1)}, True),
        ({"session": (SESSION.newest + 1, SESSION.newest + 1)}, False),
        ({"fingerprint": "other"}, False),
        ({"worker_id": "decode-1"}, False),
    ],
)
def test_a_survivor_is_kept_if_it_would_have_been_started_so_and_speaks_ours(
    said: dict[str, Any], kept: bool
) -> None:
    introduction = Introduction(
        worker_id="decode-0",
        pool="decode",
        incarnation="decode-0-aa",
        fingerprint=SPEC.fingerprint,
        session=(SESSION.oldest, SESSION.newest),
        secret="a secret",
        host="127.0.0.1",
        port=1,
        node="127.0.0.1",
    )
    assert fits({**introduction, **said}, {}, {"decode-0": SPEC.fingerprint}) is kept  # type: ignore[typeddict-item]
