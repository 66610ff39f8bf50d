"""What all simulated workers share: a life with ordered queues, and the connection of a pair.

Every queue between two parties keeps its order; which queue moves next is the test's choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from twinpool import messages as m
from twinpool.kv.blocks import BlockPool
from twinpool.pulse import Pulse
from twinpool.types import Pool

BLOCK_SIZE = 2
NUM_BLOCKS = 6
EOS = 0

Action = Callable[[], None]
Content = tuple[str, int]
Model = Callable[[int, int], int]
"""The token at a position of the answer to a prompt, which is known by its first token."""


@dataclass(frozen=True, slots=True)
class Down:
    """The end of a session, after the events that still came through."""


class Worker(ABC):
    """One life of a worker.

    alive: its process runs. session: the router hears it. stopped: its engine stands still, for good.
    fails_next: its engine's next call raises.
    """

    pool: Pool

    def __init__(self, worker_id: str, incarnation: str) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.alive = self.session = True
        self.stopped = self.fails_next = False
        self.commands: deque[m.Command] = deque()
        self.events: deque[m.Event | Down] = deque()
        self.blocks = BlockPool(NUM_BLOCKS)
        self.pulse = Pulse()

    def hello(self) -> m.Hello:
        return m.Hello(self.pool, self.incarnation, 1, NUM_BLOCKS, BLOCK_SIZE, 1)

    def publish(self, event: m.Event) -> None:
        if self.session:
            self.events.append(event)

    def lose_session(self) -> None:
        """The router hears no more of it; it frees all that the router owned."""
        if self.session:
            self.session = False
            self.events.append(Down())
            self.commands.clear()
            if self.alive:
                self.free_all()

    def die(self) -> None:
        """The process ends at once; of what it has said, the queues still bring all."""
        if self.alive:
            self.alive = False
            self.lose_session()
            self.hang_up()

    def actions(self) -> Iterator[Action]:
        """What can happen next, but for the router's reading of events."""
        if self.alive and self.commands:
            yield lambda: self.obey(self.commands.popleft())

    def time_passes(self) -> None:
        """Its threads that keep time do their work."""
        if not self.stopped:
            self.pulse.beat()
        self.publish(self.load())

    @abstractmethod
    def load(self) -> m.LoadReport: ...

    @abstractmethod
    def obey(self, command: m.Command) -> None: ...

    @abstractmethod
    def free_all(self) -> None: ...

    @abstractmethod
    def hang_up(self) -> None: ...

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether it holds nothing and does nothing."""


class Connection:
    """A pair's connection, whose words carry numbers of blocks.

    open: block tables of hand-offs that have not ended, by attempt.

    memory: the receiver's blocks, shared: whose cache was last written there, as attempt and prompt.
    """

    def __init__(self, memory: list[Content]) -> None:
        self._memory = memory
        self.words: deque[tuple[str, str, int]] = deque()
        self.answers: deque[tuple[str, str, tuple[int, ...]]] = deque()
        self.open: dict[str, tuple[int, ...]] = {}

    def begin(self, attempt: str) -> None:
        self.open[attempt] = ()
        self.words.append(("begin", attempt, 0))

    def push(self, attempt: str, first: int, num_blocks: int, content: Content) -> bool:
        """Write straight into the receiver's memory, unless the hand-off has ended."""
        if attempt not in self.open:
            return False
        for block in self.open[attempt][first : first + num_blocks]:
            self._memory[block] = content
        self.words.append(("progress", attempt, 0))
        return True

    def last_word(self, word: str, attempt: str, num_blocks: int = 0) -> bool:
        if self.open.pop(attempt, None) is None:
            return False
        self.words.append((word, attempt, num_blocks))
        return True

    def close(self) -> None:
        self.open.clear()
        self.words.append(("end", "", 0))
