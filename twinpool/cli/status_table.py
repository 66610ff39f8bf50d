"""A system's state as a table for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from twinpool.client.status import Status, WorkerStatus
from twinpool.types import Pool, WorkerState

STATE_STYLES = {
    WorkerState.STARTING: "yellow",
    WorkerState.WARMING: "yellow",
    WorkerState.READY: "green",
    WorkerState.LOST: "red",
    WorkerState.DRAINING: "cyan",
    WorkerState.WAITING_FOR_NODE: "yellow",
}
_COLUMNS = ("worker", "state", "running", "waiting", "blocks", "usage", "pid", "node", "incarnation")
_LEFT_ALIGNED = {"worker", "state", "node", "incarnation"}
_GAP = 2
_KEPT = _COLUMNS.index("usage") + 1
"""Columns that are there however narrow the terminal; those behind give way, the last one first."""


def status_table(status: Status, width: int) -> RenderableType:
    """Two lines about the whole, then a row for each worker, pool by pool, in so many characters a line."""
    rows = [_row(worker) for pool in Pool for worker in status.pool(pool)]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    shown = len(_COLUMNS)
    while shown > _KEPT and sum(widths[:shown]) + _GAP * (shown - 1) > width:
        shown -= 1
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in _COLUMNS[:shown]:
        table.add_column(column, justify="left" if column in _LEFT_ALIGNED else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row[:shown])
    reasons = [Text(f"{worker.id}: {worker.reason}") for worker in status.workers if worker.reason]
    return Group(_headline(status), table, *reasons)


def _headline(status: Status) -> Text:
    ready = sum(pair.ready for pair in status.pairs)
    serving = ("serving", "green") if status.serving else ("not serving", "red")
    return Text.assemble(
        (status.model, "bold"),
        ": ",
        serving,
        f", {ready} of {len(status.pairs)} pairs ready\n"
        f"{status.requests} requests, {status.queue.requests} of them waiting "
        f"({status.queue.tokens} tokens), "
        f"{status.handoffs_in_flight} hand-offs in flight\n",
    )


def _row(worker: WorkerStatus) -> tuple[str | Text, ...]:
    held = worker.blocks_used + worker.blocks_cached
    usage = f"{worker.blocks_used / worker.blocks_total:.0%}" if worker.blocks_total else "-"
    return (
        worker.id,
        Text(worker.state.replace("_", " "), style=STATE_STYLES[worker.state]),
        str(worker.running),
        str(worker.waiting),
        f"{held}/{worker.blocks_total}",
        usage,
        str(worker.pid or "-"),
        worker.node or "-",
        worker.incarnation or "-",
    )
