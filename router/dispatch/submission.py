"""A request in the dispatcher's hands: where its tokens go, and what its owner may do with it."""

from __future__ import annotations

from typing import Protocol

from router.scheduling.values import Output
from twinpool.errors import TwinpoolError


class Sink(Protocol):
    """Takes what comes of one request. Called on the event loop; must not block, nor call back."""

    def put(self, output: Output, *, last: bool) -> None:
        """New tokens of a choice, or its end. last: nothing comes of any choice any more."""
        ...

    def fail(self, error: TwinpoolError) -> None:
        """The request has ended with an error, and nothing comes any more."""
        ...


class Submission(Protocol):
    """A request that was submitted. Once it has ended, neither method does anything."""

    def leave(self) -> None:
        """Nobody waits for it any more: cancel it, and say nothing more to its sink."""
        ...

    def cut(self, choice_index: int, position: int) -> None:
        """End a choice well where its text ends: it has so many tokens, whatever has come after them."""
        ...
