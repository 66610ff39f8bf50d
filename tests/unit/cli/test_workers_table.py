"""The table of `twinpool status` in terminals of many widths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from twinpool.cli.status_table import status_table
from twinpool.client.status import QueueStatus, Status, WorkerStatus
from twinpool.types import Pool, WorkerState

REASON = "a worker needs 1 CPU and 1 GPU; free in the cluster: 0 of 16 CPU, 0 of 8 GPU"


def worker(name: str, state: WorkerState = WorkerState.READY, reason: str = "") -> WorkerStatus:
    pool = Pool(name.partition("-")[0])
    return WorkerStatus(
        name, pool, state, 1234, "10.0.12.7", f"{name}-0a1b2c3d", 3, 1, 70, 9, 1456, 0, reason
    )


STATUS = Status(
    "tiny",
    True,
    QueueStatus(0, 0),
    0,
    (
        worker("prefill-0"),
        worker("decode-0", WorkerState.DRAINING),
        worker("prefill-11", WorkerState.WAITING_FOR_NODE, REASON),
    ),
    (),
    0,
)


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(status_table(STATUS, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [72, 80, 100, 160])
def test_no_cell_is_cut_and_what_there_is_no_room_for_is_left_out(width: int) -> None:
    table = printed(width)
    assert "…" not in table
    for part in ("prefill-11", "waiting for node", "draining", "79/1456", "5%"):
        assert part in table
    assert REASON in " ".join(table.split())
    assert ("decode-0-0a1b2c3d" in table) == (width >= 100)


def test_each_pools_workers_stand_together() -> None:
    rows = [line.split()[0] for line in printed(160).splitlines()[4:7]]
    assert rows == ["prefill-0", "prefill-11", "decode-0"]
