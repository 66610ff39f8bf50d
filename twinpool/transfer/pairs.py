"""A worker's connections to decode workers, for hand-offs: joined and closed off its engine's thread.

A pair's life:

    joining ─► open (PairJoined out) ─► broken (PairBroken out), or left (as the router asked)

While it is joining it may already break or be left; then it never opens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from twinpool.session.messages import Event, JoinPair, PairBroken, PairJoined
from twinpool.transfer.port import HandoffSender, SenderEvents
from twinpool.transfer.words import Accepted, Ended, Ending, PairLost, PairWord
from twinpool.types import HandoffId

log = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 5.0

Connect = Callable[[JoinPair, SenderEvents], HandoffSender]
"""Opens, checks and warms one pair's connection; raises what says why not."""


class Pairs:
    """All pairs of one worker.

    senders: the open pairs by decode incarnation, read by the engine. tell: takes words to the engine; called
    from the transports' threads.
    """

    def __init__(
        self, connect: Connect, tell: Callable[[PairWord], None], publish: Callable[[Event], None]
    ) -> None:
        self.senders: dict[str, HandoffSender] = {}
        self._connect = connect
        self._tell = tell
        self._publish = publish
        self._lock = threading.Lock()
        self._pairs: dict[str, _Pair] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False

    def join(self, command: JoinPair) -> None:
        """Open a pair; `PairJoined` or `PairBroken` says how it went. A pair already open is said again."""
        with self._lock:
            if command.decode in self._pairs:
                sender = self.senders.get(command.decode)
                if sender is not None:
                    self._publish(PairJoined(command.decode, sender.transport))
            elif not self._closed:
                pair = _Pair(command, self._tell, self._ended)
                self._pairs[command.decode] = pair
                self._start(lambda: self._join(pair))

    def leave(self, decode: str) -> None:
        """Close a pair, without waiting for it; its hand-offs end as lost."""
        with self._lock:
            self._leave(decode)

    def close(self) -> None:
        """Close all, and wait for it within CLOSE_TIMEOUT_S each."""
        with self._lock:
            self._closed = True
            for decode in list(self._pairs):
                self._leave(decode)
            threads = list(self._threads)
        for thread in threads:
            thread.join(CLOSE_TIMEOUT_S)

    def _leave(self, decode: str) -> None:
        self._pairs.pop(decode, None)
        sender = self.senders.pop(decode, None)
        if sender is not None:
            self._tell(PairLost(decode, "the pair was closed"))
            # Waits for a copy in progress.
            self._start(sender.close)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="pair", daemon=True)
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]

    def _join(self, pair: _Pair) -> None:
        try:
            sender = self._connect(pair.command, pair)
        except Exception as error:  # noqa: BLE001 - whatever it is, the router is told and may try again
            log.warning("pair with %s: %s", pair.command.decode, error)
            self._ended(pair, f"{type(error).__name__}: {error}")
            return
        decode = pair.command.decode
        with self._lock:
            still_wanted = self._pairs.get(decode) is pair
            if still_wanted:
                self.senders[decode] = sender
                self._publish(PairJoined(decode, sender.transport))
        if not still_wanted:
            sender.close()

    def _ended(self, pair: _Pair, reason: str) -> None:
        """A pair broke, or did not open. One that was left, and maybe joined anew since, is over already."""
        decode = pair.command.decode
        with self._lock:
            if self._pairs.get(decode) is not pair:
                return
            del self._pairs[decode]
            self.senders.pop(decode, None)
            self._tell(PairLost(decode, reason))
            self._publish(PairBroken(decode, reason))


class _Pair:
    """One life of a pair: passes what its transport says on to the engine (it is the `SenderEvents`)."""

    def __init__(
        self, command: JoinPair, tell: Callable[[PairWord], None], ended: Callable[[_Pair, str], None]
    ) -> None:
        self.command = command
        self._tell = tell
        self._ended = ended

    def accepted(self, handoff: HandoffId, num_shared: int) -> None:
        self._tell(Accepted(handoff, num_shared))

    def refused(self, handoff: HandoffId) -> None:
        self._tell(Ended(handoff, Ending.REFUSED))

    def stop_requested(self, handoff: HandoffId) -> None:
        self._tell(Ended(handoff, Ending.STOPPED))

    def pair_broken(self, decode: str, reason: str) -> None:  # noqa: ARG002 (the command says it)
        self._ended(self, reason)
