"""A system's state as a table for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from twinpool.client.status import Status, WorkerStatus
from twinpool.types import WorkerState

_STYLES = {
    WorkerState.STARTING: "yellow",
    WorkerState.WARMING: "yellow",
    WorkerState.READY: "green",
    WorkerState.LOST: "red",
    WorkerState.DRAINING: "cyan",
    WorkerState.WAITING_FOR_NODE: "yellow",
}
_COLUMNS = ("worker", "state", "running", "waiting", "blocks", "usage", "pid", "node", "incarnation")
_LEFT_ALIGNED = {"worker", "state", "node", "incarnation"}


def status_table(status: Status) -> RenderableType:
    """Two lines about the whole, then a row for each worker."""
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _LEFT_ALIGNED else "right", no_wrap=True)
    for worker in status.workers:
        table.add_row(*_row(worker))
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
        Text(worker.state.replace("_", " "), style=_STYLES[worker.state]),
        str(worker.running),
        str(worker.waiting),
        f"{held}/{worker.blocks_total}",
        usage,
        str(worker.pid or "-"),
        worker.node or "-",
        worker.incarnation or "-",
    )
