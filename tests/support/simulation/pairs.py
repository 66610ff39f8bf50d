"""The connections between simulated workers, and what the blocks at both ends hold.

Every queue between two parties keeps its order; which queue moves next is the test's choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from twinpool.kv.reservations import Opened
from twinpool.session import messages as m
from twinpool.transfer.port import HandoffSender
from twinpool.transfer.words import Accepted, Ended, Ending, PairLost, PairWord
from twinpool.types import HandoffId

NOBODY = HandoffId("")


@dataclass(frozen=True, slots=True)
class Content:
    """What a block holds: num_tokens of a prompt (known by its first token), from position start on.

    handoff: whose cache it is.
    """

    handoff: HandoffId
    prompt: int
    start: int
    num_tokens: int


Memory = list[Content]


class Connection:
    """One pair's connection, as its sender uses it (it is a `HandoffSender`).

    open: block tables of hand-offs that have not ended, by id. words and answers: what is on its way to
    the receiver, with a number of blocks, and to the sender.
    """

    transport = "shm"

    def __init__(self, source: Memory, target: Memory) -> None:
        self._source = source
        self._target = target
        self.words: deque[tuple[str, HandoffId, int]] = deque()
        self.answers: deque[tuple[str, HandoffId, Opened | None]] = deque()
        self.open: dict[HandoffId, tuple[int, ...]] = {}
        self._num_pushed: dict[HandoffId, int] = {}

    def begin(self, handoff: HandoffId) -> None:
        assert handoff not in self._num_pushed, "a hand-off begins once"
        self.open[handoff] = ()
        self._num_pushed[handoff] = 0
        self.words.append(("begin", handoff, 0))

    def push(self, handoff: HandoffId, source_blocks: Sequence[int], first: int) -> bool:
        """Write straight into the receiver's memory, unless the hand-off has ended."""
        if handoff not in self.open:
            return False
        targets = self.open[handoff][first : first + len(source_blocks)]
        if len(targets) < len(source_blocks):
            raise ValueError(f"{handoff} has more blocks than were reserved")
        for source, target in zip(source_blocks, targets, strict=True):
            self._target[target] = replace(self._source[source], handoff=handoff)
        self._num_pushed[handoff] += len(source_blocks)
        self.words.append(("progress", handoff, 0))
        return True

    def renew(self, handoff: HandoffId) -> None:
        if handoff in self.open:
            self.words.append(("progress", handoff, 0))

    def written(self, handoff: HandoffId) -> bool:
        return self._last_word("written", handoff)

    def stopped(self, handoff: HandoffId) -> None:
        self._last_word("stopped", handoff)

    def close(self) -> None:
        self.open.clear()
        self.words.append(("end", NOBODY, 0))

    def hear(self) -> PairWord | None:
        """The receiver's next word, taken as a transport takes it: `stop` is answered at once."""
        answer, handoff, opened = self.answers.popleft()
        match answer:
            case "accepted" if opened is not None and handoff in self.open:
                self.open[handoff] = opened.blocks
                return Accepted(handoff, opened.num_shared)
            case "refused" if self.open.pop(handoff, None) is not None:
                return Ended(handoff, Ending.REFUSED)
            case "stop" if self._last_word("stopped", handoff):
                return Ended(handoff, Ending.STOPPED)
        return None

    def _last_word(self, word: str, handoff: HandoffId) -> bool:
        if self.open.pop(handoff, None) is None:
            return False
        self.words.append((word, handoff, self._num_pushed[handoff]))
        return True


class Receiver(Protocol):
    """The decode worker at a connection's other end. connections: by the sender's incarnation."""

    alive: bool
    memory: Memory
    connections: dict[str, Connection]


class Senders:
    """A worker's connections to decode workers, by incarnation.

    tell: takes what the receivers say to whoever hands off. publish: tells the router how pairs do.
    """

    def __init__(
        self,
        incarnation: str,
        memory: Memory,
        receivers: Mapping[str, Receiver],
        tell: Callable[[PairWord], None],
        publish: Callable[[m.Event], None],
    ) -> None:
        self._incarnation = incarnation
        self._memory = memory
        self._receivers = receivers
        self._tell = tell
        self._publish = publish
        self.connections: dict[str, Connection] = {}

    @property
    def ports(self) -> Mapping[str, HandoffSender]:
        """The connections, as the port."""
        return self.connections

    @property
    def idle(self) -> bool:
        return not any(connection.open for connection in self.connections.values())

    def join(self, decode: str) -> None:
        receiver = self._receivers[decode]
        if decode in self.connections:
            self._publish(m.PairJoined(decode, "shm"))
        elif not receiver.alive or self._incarnation in receiver.connections:
            self._publish(m.PairBroken(decode, "refused"))
        else:
            connection = Connection(self._memory, receiver.memory)
            self.connections[decode] = receiver.connections[self._incarnation] = connection
            self._publish(m.PairJoined(decode, "shm"))

    def leave(self, decode: str, reason: str = "the pair was closed") -> None:
        if connection := self.connections.pop(decode, None):
            connection.close()
            self._tell(PairLost(decode, reason))

    def lose(self, decode: str, reason: str) -> None:
        """A connection is gone that the router believes in."""
        self.leave(decode, reason)
        self._publish(m.PairBroken(decode, reason))

    def lose_all(self) -> None:
        """The network fails between live workers."""
        for decode in list(self.connections):
            self.lose(decode, "reset")

    def hang_up(self) -> None:
        """The process ends, and its sockets close."""
        for connection in self.connections.values():
            connection.close()

    def waiting(self) -> list[str]:
        """Whose words have not been heard."""
        return [decode for decode, connection in self.connections.items() if connection.answers]

    def hear(self, decode: str) -> None:
        """Take one word of a receiver's."""
        connection = self.connections[decode]
        if connection.answers[0][0] == "end":
            self.lose(decode, "the decode worker closed the connection")
        elif word := connection.hear():
            self._tell(word)
