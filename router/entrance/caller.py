"""Who calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """A client, as the face that it came through knows it. peer: its address."""

    peer: str
