"""What a verification found, as a table for people."""

from __future__ import annotations

from dataclasses import astuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from twinpool.client.verification import Verification, VerifiedWorker

_BLOCKS = ("free", "reserved", "rows", "cached", "quarantined")
_COLUMNS = ("worker", "verdict", "holders", *_BLOCKS, "blocks", "incarnation")
_LEFT_ALIGNED = {"worker", "verdict", "incarnation"}


def verification_table(found: Verification) -> RenderableType:
    """A line about the whole, a row for each worker, and a line for each problem."""
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _LEFT_ALIGNED else "right", no_wrap=True)
    for worker in found.workers:
        table.add_row(*_row(worker))
    problems = [Text(problem, style="red") for problem in found.problems]
    return Group(_headline(found), table, *problems)


def _headline(found: Verification) -> Text:
    wrong = len(found.problems)
    verdict = (_problems(wrong), "red") if wrong else ("all blocks accounted for", "green")
    return Text.assemble(verdict, ", at rest\n" if found.at_rest else ", not at rest\n")


def _row(worker: VerifiedWorker) -> tuple[str | Text, ...]:
    wrong = _problems(len(worker.problems)) if worker.answered else "no answer"
    return (
        worker.id,
        Text(wrong, style="red") if worker.problems else Text("ok", style="green"),
        str(len(worker.held)),
        *(str(blocks) for blocks in astuple(worker.blocks)),
        str(worker.blocks_total),
        worker.incarnation[:12] or "-",
    )


def _problems(number: int) -> str:
    return f"{number} problem{'' if number == 1 else 's'}"
