"""The workers of `twinpool top`: a row for each, with bars for batch, queue and cache, and what is wrong."""

from __future__ import annotations

import textwrap
from collections import Counter

from rich.text import Text

from twinpool.cli.charts import Glyphs, bar
from twinpool.cli.status_table import STATE_STYLES
from twinpool.client.status import Status, WorkerStatus
from twinpool.types import Pool, WorkerState

_STATE, _BATCH, _QUEUE, _SHARE, _BLOCKS = 8, 8, 6, 5, 12
_NAME, _LONGEST_NAME = 9, 14
_LEAST_BAR, _MOST_BAR = 5, 40
_MOST_NOTE_LINES = 2
_MOST_URGENT = (
    *(WorkerState.LOST, WorkerState.WAITING_FOR_NODE, WorkerState.STARTING, WorkerState.WARMING),
    *(WorkerState.DRAINING, WorkerState.READY),
)
_SHORT = {WorkerState.WAITING_FOR_NODE: "no node"}
_ROWS = {Pool.PREFILL: "prompts", Pool.DECODE: "rows"}


def worker_lines(status: Status, width: int, room: int | None, glyphs: Glyphs) -> list[Text]:
    """Both pools. room: lines there are; None: enough. Those that are not ready are shown before others."""
    columns = _Columns(status, width, glyphs)
    drawn = {worker.id: columns.lines(worker, _MOST_NOTE_LINES) for worker in status.workers}
    if not _fits(drawn, room):
        drawn = {worker.id: columns.lines(worker, 1) for worker in status.workers}
    shown = set(drawn) if room is None or _fits(drawn, room) else _chosen(status, drawn, room)
    lines = []
    for pool in Pool:
        workers = status.pool(pool)
        lines.append(columns.heading(pool, workers, status.targets.get(pool)))
        for worker in workers:
            lines += drawn[worker.id] if worker.id in shown else []
        hidden = [worker for worker in workers if worker.id not in shown]
        if hidden:
            lines.append(Text(f"{glyphs.ellipsis} {len(hidden)} more: {_summary(hidden)}", style="dim"))
    return lines


def _fits(drawn: dict[str, list[Text]], room: int | None) -> bool:
    return room is None or len(Pool) + sum(len(lines) for lines in drawn.values()) <= room


def _chosen(status: Status, drawn: dict[str, list[Text]], room: int) -> set[str]:
    """The workers for which there is room, beside the headings and a line about the others of each pool."""
    left, shown = room - 2 * len(Pool), set()
    for worker in sorted(status.workers, key=lambda worker: _MOST_URGENT.index(worker.state)):
        if left >= len(drawn[worker.id]):
            shown.add(worker.id)
            left -= len(drawn[worker.id])
    return shown


class _Columns:
    """How wide each column is; without room for them, bars go first, then the counts of blocks."""

    def __init__(self, status: Status, width: int, glyphs: Glyphs) -> None:
        self._width = width
        self._glyphs = glyphs
        self._most_running = status.most_running
        longest = max((len(worker.id) for worker in status.workers), default=0)
        self._name = min(_LONGEST_NAME, max(_NAME, longest)) + 1
        figures = self._name + _STATE + _BATCH + _QUEUE + _SHARE
        self._has_blocks = width >= figures + _BLOCKS
        spare = width - figures - (_BLOCKS if self._has_blocks else 0) - 4
        self._bar = min(_MOST_BAR, spare // 2) if spare >= 2 * _LEAST_BAR else 0

    def heading(self, pool: Pool, workers: tuple[WorkerStatus, ...], target: int | None) -> Text:
        """The pool's name, how many are ready of those wanted, and what its columns are."""
        ready = sum(worker.state is WorkerState.READY for worker in workers)
        wanted = len(workers) if target is None else target
        count = f"{ready}/{wanted} ready"
        style = "bold green" if ready >= wanted and ready else "bold red" if not ready else "bold yellow"
        rest = self._join(self._pad(""), _ROWS[pool], "queue", self._pad(""), "KV", "blocks")
        name = f"{pool} "
        space = max(0, self._name + _STATE - len(name) - len(count))
        return Text.assemble((name, "bold"), (count, style), " " * space, (rest, "dim"))

    def lines(self, worker: WorkerStatus, most_note_lines: int) -> list[Text]:
        """A worker's row, and notes on what is wrong."""
        lines = [self._row(worker)]
        notes = [worker.reason] if worker.reason else []
        if worker.blocks_quarantined:
            notes.append(f"{worker.blocks_quarantined} blocks quarantined: their writer has not let go")
        for note in notes:
            wrapped = textwrap.wrap(
                " ".join(note.split()),
                max(20, self._width - 2),
                max_lines=most_note_lines,
                placeholder=f" {self._glyphs.ellipsis}",
            )
            lines += [Text(f"  {line}", style="yellow") for line in wrapped]
        return lines

    def _row(self, worker: WorkerStatus) -> Text:
        row = Text.assemble(
            f"{worker.id[: self._name - 1]:{self._name}}",
            (f"{_state(worker.state):{_STATE}}", STATE_STYLES[worker.state]),
        )
        if not worker.blocks_total:
            return row  # not up: there is nothing to count
        most = self._most_running.get(worker.pool, 0)
        batch = f"{worker.running}/{most}" if most else str(worker.running)
        whole = max(most, worker.running + worker.waiting)
        self._draw(row, worker.running, worker.waiting, whole, "cyan", "yellow")
        row.append(f"{batch:>{_BATCH}}")
        row.append(f"{worker.waiting:>{_QUEUE}}", style="yellow" if worker.waiting else "")
        share = _share(worker)
        self._draw(row, worker.blocks_used, worker.blocks_cached, worker.blocks_total, _heat(share), "dim")
        row.append(f"{share:>{_SHARE}.0%}")
        if self._has_blocks:
            row.append(f"{f'{worker.blocks_used}/{worker.blocks_total}':>{_BLOCKS}}")
        return row

    def _draw(
        self, row: Text, first: float, second: float, whole: float, first_style: str, second_style: str
    ) -> None:
        if self._bar:
            parts = bar(first, second, whole, self._bar, self._glyphs)
            styles = (first_style, second_style, "dim")
            row.append("  ")
            for part, style in zip(parts, styles, strict=True):
                row.append(part, style=style)

    def _pad(self, text: str) -> str:
        return f"  {text:{self._bar}}" if self._bar else ""

    def _join(self, first_bar: str, batch: str, queue: str, second_bar: str, share: str, blocks: str) -> str:
        last = f"{blocks:>{_BLOCKS}}" if self._has_blocks else ""
        return f"{first_bar}{batch:>{_BATCH}}{queue:>{_QUEUE}}{second_bar}{share:>{_SHARE}}{last}"


def _summary(workers: list[WorkerStatus]) -> str:
    states = Counter(_state(worker.state) for worker in workers)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    num_running, most = sum(worker.running for worker in workers), max(map(_share, workers))
    return f"{counts}; {num_running} running, KV up to {most:.0%}"


def _share(worker: WorkerStatus) -> float:
    return worker.blocks_used / worker.blocks_total if worker.blocks_total else 0.0


def _state(state: WorkerState) -> str:
    return _SHORT.get(state, str(state))


def _heat(share: float) -> str:
    if share < 0.75:
        return "green"
    return "yellow" if share < 0.92 else "red"
