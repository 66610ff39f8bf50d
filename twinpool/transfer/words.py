"""What is said of hand-offs: by an engine to its pairs, and by the pairs to their engine. Values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from twinpool.types import HandoffId


@dataclass(frozen=True, slots=True)
class Begin:
    """Ask a decode worker to write; answered by `Accepted`, `Ended` or `PairLost`."""

    decode: str
    handoff: HandoffId


@dataclass(frozen=True, slots=True)
class Renew:
    """Keep an accepted hand-off from expiring."""

    decode: str
    handoff: HandoffId


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The last word of a hand-off that is not whole: nothing is copied after it."""

    decode: str
    handoff: HandoffId


HandoffWord = Begin | Renew | GiveUp
"""What an engine says; see `twinpool.transfer.port`."""


class Ending(StrEnum):
    """Why a hand-off goes no further, by the receiver's word."""

    REFUSED = "refused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The decode worker opened the reservation; it has the first num_shared blocks already."""

    handoff: HandoffId
    num_shared: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The hand-off cannot go on."""

    handoff: HandoffId
    ending: Ending


@dataclass(frozen=True, slots=True)
class PairLost:
    """A pair's connection ended."""

    decode: str
    reason: str


PairWord = Accepted | Ended | PairLost
"""What an engine hears of its hand-offs."""
