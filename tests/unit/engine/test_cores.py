"""Who has which slot in the ledger of busy cores, and when it goes."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from twinpool.engine.kernels import cores
from twinpool.engine.kernels.cores import NUM_SLOTS, SharedCores, remove_unused


def claim(folder: Path) -> SharedCores:
    worker = SharedCores.claim(4, 1, folder)
    assert worker is not None
    return worker


def claimed_by_a_process_that_ended(folder: Path) -> None:
    code = f"""
from pathlib import Path
from twinpool.engine.kernels.cores import SharedCores
assert SharedCores.claim(4, 1, Path({str(folder)!r})).own == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_has_a_slot_of_its_own(tmp_path: Path) -> None:
    workers = [claim(tmp_path) for _ in range(3)]
    assert [worker.own for worker in workers] == [0, 1, 2]
    workers[1].close()
    assert claim(tmp_path).own == 1


def test_the_slot_of_a_process_that_ended_is_free(tmp_path: Path) -> None:
    claimed_by_a_process_that_ended(tmp_path)
    assert claim(tmp_path).own == 0


def test_the_last_to_leave_removes_the_ledger(tmp_path: Path) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    first.close()
    assert len(list(tmp_path.iterdir())) == 1
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_what_killed_workers_left_is_removed(tmp_path: Path) -> None:
    claimed_by_a_process_that_ended(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    remove_unused(tmp_path)
    assert list(tmp_path.iterdir()) == []
    remove_unused(tmp_path)


def test_a_ledger_in_use_stays(tmp_path: Path) -> None:
    worker = claim(tmp_path)
    remove_unused(tmp_path)
    assert claim(tmp_path).own == 1
    worker.close()


def test_without_room_nothing_is_shared(tmp_path: Path) -> None:
    workers = [claim(tmp_path) for _ in range(NUM_SLOTS)]
    assert SharedCores.claim(4, 1, tmp_path) is None
    assert SharedCores.claim(4, 1, tmp_path / "missing") is None
    for worker in workers:
        worker.close()


def test_a_ledger_that_somebody_keeps_locked_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = claim(tmp_path)
    monkeypatch.setattr(cores, "_PATIENCE_S", 0.01)
    (ledger,) = tmp_path.iterdir()
    with ledger.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert SharedCores.claim(4, 1, tmp_path) is None
    worker.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write here could otherwise have any file of ours changed."""
    worker = claim(tmp_path)
    (ledger,) = tmp_path.iterdir()
    worker.close()
    (tmp_path / "other").write_bytes(b"precious")
    ledger.symlink_to(tmp_path / "other")
    assert SharedCores.claim(4, 1, tmp_path) is None
    assert (tmp_path / "other").read_bytes() == b"precious"


@pytest.mark.parametrize("share", [1, 3])
def test_a_slot_says_what_it_was_claimed_with(tmp_path: Path, share: int) -> None:
    worker = SharedCores.claim(4, share, tmp_path)
    assert worker is not None
    assert (worker.num_cpus, worker.share, worker.own, worker.num_slots) == (4, share, 0, NUM_SLOTS)
    worker.close()
