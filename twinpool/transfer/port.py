"""The hand-off port: how a request's cache moves from a prefill worker to a decode worker.

Who speaks, in order, for one hand-off:

    sender                                   receiver
      begin  ───────────────────────────────►  accepted | refused
      push   (blocks, in any order) ────────►  renews the reservation's expiry
      renew  (where there is none to push) ─►  the same
      written | stopped ────────────────────►  the sender's last word; no byte follows it
             ◄──────────────────────────────  stop (at any time; answered by one of the last words)

Words and pushes count the blocks that are the reservation's own. It may begin with shared ones, which the
receiver has already: `accepted` says how many, and the sender leaves so many of its own out.

One connection per prefill-decode pair carries all hand-offs between the two. Its end proves that no byte
follows either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twinpool.kv.reservations import Opened
from twinpool.types import HandoffId


class HandoffRefused(Exception):
    """A pair cannot be joined; the message names the field or the limit."""


class SenderEvents(Protocol):
    """What a sender hears. Called from the transport's threads; nothing here may block."""

    def accepted(self, handoff: HandoffId, num_shared: int) -> None:
        """The reservation is there: blocks may be pushed, but for the first num_shared."""
        ...

    def refused(self, handoff: HandoffId) -> None:
        """The reservation is not there; nothing was or will be written."""
        ...

    def stop_requested(self, handoff: HandoffId) -> None:
        """The receiver has revoked it; the transport has already answered `stopped`."""
        ...

    def pair_broken(self, decode: str, reason: str) -> None:
        """The connection ended; no hand-off on it will hear anything more."""
        ...


class HandoffSender(Protocol):
    """The prefill side of one pair. Used by the engine's thread, but for `close`.

    Trouble with the connection is no exception here: words come to nothing, and `pair_broken` is heard.
    A block handed to `push` still belongs to the caller, who may free it once `written` or `stopped`
    returned, or `stop_requested`, `refused` or `pair_broken` was heard.
    """

    transport: str

    def begin(self, handoff: HandoffId) -> None:
        """Ask to write; the answer comes as `accepted` or `refused`."""
        ...

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        """Copy blocks into the reservation's own blocks first, first + 1, …; False if it was stopped.

        Only after `accepted`. Raises ValueError where the reservation has no such blocks.
        """
        ...

    def renew(self, handoff: HandoffId) -> None:
        """Say that blocks will follow, so that the reservation does not expire; only after `accepted`."""
        ...

    def written(self, handoff: HandoffId) -> bool:
        """All blocks are pushed; False if it was stopped before."""
        ...

    def stopped(self, handoff: HandoffId) -> None:
        """Give up; does nothing if the hand-off has ended on this connection."""
        ...

    def close(self) -> None:
        """End the connection once no copy is in progress; `pair_broken` is not heard. From any thread."""
        ...


class ReceiverEvents(Protocol):
    """What a receiver tells the decode worker. Called from the transport's threads."""

    def begin(self, writer: str, handoff: HandoffId) -> Opened | None:
        """The blocks to write; None refuses."""
        ...

    def progress(self, writer: str, handoff: HandoffId) -> None:
        """Blocks have arrived, or will."""
        ...

    def written(self, writer: str, handoff: HandoffId, num_blocks: int, checksums: Sequence[int]) -> None:
        """The sender's last word: so many blocks are there; one checksum each, or none at all."""
        ...

    def stopped(self, writer: str, handoff: HandoffId) -> None:
        """The sender's last word."""
        ...

    def connection_ended(self, writer: str) -> None:
        """No byte follows from this writer."""
        ...


class HandoffReceiver(Protocol):
    """The decode side of all pairs of one transport."""

    def stop(self, writer: str, handoff: HandoffId) -> None:
        """Tell a writer to stop; nothing if it is not one of ours.

        Called under the lock of all reservations: must not block, and may call back `stopped` at once.
        """
        ...

    def close(self) -> None:
        """End all connections."""
        ...
