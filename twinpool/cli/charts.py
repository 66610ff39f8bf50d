"""Bars and sparklines of one line, in block characters or, where a terminal has none, in ASCII."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """levels: a sparkline's, from almost nothing to all. parts: of a bar's last cell, from little to full.

    second: a full cell of a bar's second part. empty: a cell of neither. ellipsis: something was cut.
    """

    levels: str
    parts: str
    second: str
    empty: str
    ellipsis: str


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "▏▎▍▌▋▊▉█", "▒", "·", "…")
ASCII = Glyphs("_.-=+*#@", "#", "=", ".", ">")
NOTHING = " "
"""A cell of a sparkline for a time of which nothing is known, or in which nothing happened."""


def sparkline(values: Sequence[float | None], glyphs: Glyphs) -> str:
    """One character a value, between zero and the largest; None and zero are blank."""
    largest = max((value for value in values if value is not None), default=0.0)
    return "".join(_level(value, largest, glyphs.levels) for value in values)


def bar(first: float, second: float, whole: float, width: int, glyphs: Glyphs) -> tuple[str, str, str]:
    """The three parts of a bar of so many cells: what is first, second, and the rest of the whole.

    What is more than nothing shows, in one cell at least; what is less than the whole does not fill it.
    """
    if whole <= 0:
        return "", "", glyphs.empty * width
    share = min(1.0, first / whole)
    cells = share * width
    if first > 0:
        cells = max(cells, 1 / len(glyphs.parts))
    num_full = int(cells)
    part = math.floor((cells - num_full) * len(glyphs.parts))
    begun = glyphs.parts[-1] * num_full + (glyphs.parts[part - 1] if part else "")
    if first > 0 and not begun:
        begun = glyphs.parts[0]
    room = width - len(begun)
    behind = min(room, math.ceil(min(1.0, second / whole) * width)) if second > 0 else 0
    return begun, glyphs.second * behind, glyphs.empty * (room - behind)


def _level(value: float | None, largest: float, levels: str) -> str:
    if value is None or value <= 0:
        return NOTHING
    return levels[min(len(levels) - 1, int(value / largest * len(levels)))]
