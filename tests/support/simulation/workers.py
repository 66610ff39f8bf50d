"""What all simulated workers share: a life with two ordered streams; see also `pairs`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.support.simulation.loop import BLOCK_SIZE, InventedEngine, Model
from tests.support.simulation.pairs import NOBODY, Content, Memory, Receiver, Senders
from twinpool.kv.pool import BlockPool, Owner
from twinpool.session import messages as m
from twinpool.transfer.words import PairWord
from twinpool.types import HolderId, Pool
from twinpool.worker.pulse import Pulse

EOS = 0

Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class World:
    """What workers live in. num_blocks: of each worker. decodes: all by incarnation, alive or not.

    closes: whether the end of a process ends its connections, as with sockets; otherwise decode workers hear
    of it from the router alone.
    """

    num_blocks: int
    model: Model
    clock: Callable[[], float]
    closes: bool
    decodes: Mapping[str, Receiver]


@dataclass(frozen=True, slots=True)
class Down:
    """The end of a session, after the events that still came through."""


class Stream:
    """What is on its way over one of the two streams, each in order."""

    def __init__(self) -> None:
        self.commands: deque[m.Command] = deque()
        self.events: deque[m.Event | Down] = deque()


class Worker(ABC):
    """One life of a worker.

    alive: its process runs. session: the router hears it. holders: those that came over its work and hold
    something. stopped: its engine stands still, for good.
    retired: its seat is not filled again. memory: what its blocks hold, for its engine to compute with.
    senders: its connections to decode workers, over which it hands off.
    """

    pool: Pool

    def __init__(self, worker_id: str, incarnation: str, world: World) -> None:
        self.world = world
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.alive = self.session = True
        self.stopped = self.retired = False
        self.control = Stream()
        self.work = Stream()
        self.holders: set[HolderId] = set()
        self.blocks = BlockPool(world.num_blocks)
        self.pulse = Pulse()
        self.memory: Memory = [Content(NOBODY, 0, 0, 0)] * world.num_blocks
        self.engine = InventedEngine(self.memory, world.model)
        self.senders = Senders(incarnation, self.memory, world.decodes, self.hear, self.publish)

    @property
    def holds_nothing(self) -> bool:
        """Whether all its blocks are free."""
        return self.blocks.count(Owner.FREE) == self.world.num_blocks

    def hello(self) -> m.Hello:
        return m.Hello(self.pool, self.incarnation, 1, self.world.num_blocks, BLOCK_SIZE, 1)

    def publish(self, event: m.Event) -> None:
        match event:
            case m.Released(holder) | m.PrefillEnded(holder) | m.Refused(holder):
                self.holders.discard(holder)
            case _:
                pass
        if self.session:
            (self.control if isinstance(event, m.ControlEvent) else self.work).events.append(event)

    def send(self, command: m.Command) -> None:
        """The router sends a command."""
        if self.alive and self.session:
            (self.control if isinstance(command, m.ControlCommand) else self.work).commands.append(command)

    def lose_session(self) -> None:
        """The router hears no more of it; it frees all that the router owned."""
        if self.session:
            self.session = False
            for stream in (self.control, self.work):
                stream.events.append(Down())
                stream.commands.clear()
            if self.alive:
                for holder in sorted(self.holders):
                    self.drop(holder)

    def die(self) -> None:
        """The process ends at once; of what it has said, the queues still bring all."""
        if self.alive:
            self.alive = False
            self.lose_session()
            if self.world.closes:
                self.senders.hang_up()

    def actions(self) -> Iterator[Action]:
        """What can happen next, but for the router's reading of events."""
        for stream in (self.control, self.work):
            if self.alive and stream.commands:
                yield lambda stream=stream: self._receive(stream.commands.popleft())  # type: ignore[misc]

    def _receive(self, command: m.Command) -> None:
        match command:
            case m.Reserve(handoff) | m.Prefill(handoff):
                self.holders.add(handoff)
            case m.Admit(attempt, handoff):
                self.holders.discard(handoff)
                self.holders.add(attempt)
            case _:
                pass
        self.obey(command)

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
    def drop(self, holder: HolderId) -> None:
        """Free what a holder has, since nobody wants it any more."""

    @abstractmethod
    def hear(self, word: PairWord) -> None:
        """A word about one of its hand-offs."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether it holds nothing and does nothing."""
