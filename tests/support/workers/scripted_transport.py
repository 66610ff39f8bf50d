"""A hand-off transport that goes wrong on command: a real one, some of whose words meet a fault.

script = Script()
script.plan("push", Fault.CORRUPT, skip=1)          # the second push
worker = PrefillWorker(spec, connect=script.connector())
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from twinpool.config import HandoffConfig
from twinpool.kv.storage import KvStorage, copy_blocks
from twinpool.session.messages import JoinPair
from twinpool.transfer.connect import Connector, connect_pair
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffSender, SenderEvents
from twinpool.types import HandoffId

WAIT_S = 30.0
WORDS = ("begin", "push", "written", "stopped")


class Fault(StrEnum):
    """What happens to a word."""

    DROP = "drop"
    """It is lost; the sender believes that it went out."""
    DELAY = "delay"
    """It waits, and the engine with it, until it is let go."""
    CORRUPT = "corrupt"
    """A push arrives with a bit of every byte of its first block turned over."""
    FAIL = "fail"
    """The connection breaks instead."""
    RAISE = "raise"
    """The transport has a bug."""


@dataclass(slots=True, eq=False)
class Planned:
    """One fault, for the (skip + 1)th such word of a hand-off (None: of all), and `times` in a row."""

    word: str
    fault: Fault
    handoff: HandoffId | None
    skip: int
    times: int
    reached: threading.Event = field(default_factory=threading.Event)
    """Set once a word has met it."""
    let_go: threading.Event = field(default_factory=threading.Event)
    """To be set by the test, where words are delayed."""

    def meets(self, word: str, handoff: HandoffId) -> bool:
        if word != self.word or self.handoff not in (None, handoff) or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        self.reached.set()
        return True


class Script:
    """All that goes wrong, for all pairs opened by its connector."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._planned: list[Planned] = []
        self._stopped: set[str] = set()

    def stop_requested(self, handoff: HandoffId) -> None:
        """A receiver's `stop` has come."""
        with self._lock:
            self._stopped.add(handoff)
            self._lock.notify_all()

    def await_stop(self, handoff: HandoffId) -> bool:
        """Wait until the receiver's `stop` for a hand-off has come; False if it has not in time."""
        with self._lock:
            return self._lock.wait_for(lambda: handoff in self._stopped, WAIT_S)

    def plan(
        self, word: str, fault: Fault, handoff: HandoffId | None = None, *, skip: int = 0, times: int = 1
    ) -> Planned:
        assert word in WORDS
        planned = Planned(word, fault, handoff, skip, times)
        with self._lock:
            self._planned.append(planned)
        return planned

    def clear(self) -> None:
        """From now on all goes well; words that were delayed go on."""
        with self._lock:
            for planned in self._planned:
                planned.let_go.set()
            self._planned.clear()

    def take(self, word: str, handoff: HandoffId) -> Planned | None:
        """What happens to this word."""
        with self._lock:
            return next((each for each in self._planned if each.meets(word, handoff)), None)

    def connector(self, connect: Connector = connect_pair) -> Connector:
        """Opens real pairs, and puts the script between them and the worker."""

        def connect_scripted(
            command: JoinPair,
            identity: Identity,
            source: KvStorage,
            config: HandoffConfig,
            events: SenderEvents,
        ) -> HandoffSender:
            in_flight = _InFlight(source)
            real = connect(command, identity, in_flight, config, _ScriptedEvents(self, events))
            return ScriptedSender(self, real, source, in_flight, command.decode, events)

        return connect_scripted


class _InFlight(KvStorage):
    """Blocks on their way from cache to transport, where they may be damaged; checksums are the cache's."""

    def __init__(self, source: KvStorage) -> None:
        super().__init__(source.layout, source.num_blocks)
        self._source = source

    def block_checksum(self, block_id: int) -> int:
        return self._source.block_checksum(block_id)


class _ScriptedEvents:
    """`SenderEvents` that let the script know of stops, once they are heard."""

    def __init__(self, script: Script, events: SenderEvents) -> None:
        self.accepted = events.accepted
        self.refused = events.refused
        self.pair_broken = events.pair_broken
        self._script = script
        self._events = events

    def stop_requested(self, handoff: HandoffId) -> None:
        self._events.stop_requested(handoff)
        self._script.stop_requested(handoff)


class ScriptedSender:
    """A `HandoffSender` around a real one."""

    def __init__(
        self,
        script: Script,
        real: HandoffSender,
        source: KvStorage,
        in_flight: KvStorage,
        decode: str,
        events: SenderEvents,
    ) -> None:
        self.transport = real.transport
        self._script = script
        self._real = real
        self._source = source
        self._in_flight = in_flight
        self._decode = decode
        self._events = events

    def begin(self, handoff: HandoffId) -> None:
        if self._suffers(self._script.take("begin", handoff)):
            self._real.begin(handoff)

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        copy_blocks(self._source, source_blocks, self._in_flight, source_blocks)
        planned = self._script.take("push", handoff)
        if planned is not None and planned.fault is Fault.CORRUPT:
            self._in_flight.blocks[source_blocks[0]] ^= 1
        elif not self._suffers(planned):
            return planned is not None and planned.fault is Fault.DROP
        return self._real.push(handoff, source_blocks, first)

    def renew(self, handoff: HandoffId) -> None:
        self._real.renew(handoff)

    def written(self, handoff: HandoffId) -> bool:
        planned = self._script.take("written", handoff)
        if not self._suffers(planned):
            return planned is not None and planned.fault is Fault.DROP
        return self._real.written(handoff)

    def stopped(self, handoff: HandoffId) -> None:
        if self._suffers(self._script.take("stopped", handoff)):
            self._real.stopped(handoff)

    def close(self) -> None:
        self._real.close()

    def _suffers(self, planned: Planned | None) -> bool:
        """Let a word meet its fault; whether it goes out after that."""
        match planned.fault if planned else None:
            case Fault.DROP:
                return False
            case Fault.DELAY if planned is not None:
                assert planned.let_go.wait(WAIT_S)
            case Fault.FAIL:
                self._real.close()
                self._events.pair_broken(self._decode, "as scripted")
                return False
            case Fault.RAISE:
                raise RuntimeError("as scripted")
        return True
