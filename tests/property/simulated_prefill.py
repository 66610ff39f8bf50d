"""A prefill worker that keeps the protocol: it reads prompts in any order and pushes as it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.property.simulated_decode import SimulatedDecode
from tests.property.simulated_workers import BLOCK_SIZE, EOS, NUM_BLOCKS, Action, Connection, Model, Worker
from twinpool import messages as m
from twinpool.kv.blocks import Owner
from twinpool.types import Pool, finish_reason

CHUNK_TOKENS = 2


@dataclass(slots=True)
class ReadPrompt:
    """A prompt on a prefill worker."""

    command: m.Prefill
    connection: Connection | None
    blocks: tuple[int, ...]
    num_read: int = 0
    num_pushed: int = 0
    accepted: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.command.prompt_ids) + len(self.command.output_ids)


class SimulatedPrefill(Worker):
    """decodes: all decode workers by incarnation, alive or not.

    closes: whether the end of its process ends its connections, as with sockets. Otherwise decode workers
    hear of its end from the router alone.
    """

    pool = Pool.PREFILL

    def __init__(
        self,
        worker_id: str,
        incarnation: str,
        model: Model,
        decodes: dict[str, SimulatedDecode],
        *,
        closes: bool,
    ) -> None:
        super().__init__(worker_id, incarnation)
        self._closes = closes
        self._model = model
        self._decodes = decodes
        self.connections: dict[str, Connection] = {}
        self.prompts: dict[str, ReadPrompt] = {}

    @property
    def idle(self) -> bool:
        hands_off = any(connection.open for connection in self.connections.values())
        return not self.prompts and not hands_off and self.blocks.count(Owner.FREE) == NUM_BLOCKS

    def load(self) -> m.LoadReport:
        free = self.blocks.count(Owner.FREE)
        return m.LoadReport(running=len(self.prompts), blocks_free=free, progress=self.pulse.turns)

    def obey(self, command: m.Command) -> None:
        match command:
            case m.JoinPair(decode):
                self._join(decode)
            case m.LeavePair(decode):
                self._close(decode, "the pair was closed")
            case m.Prefill():
                self._start(command)
            case m.CancelPrefill(attempt):
                self._cancel(attempt)
            case _:
                raise AssertionError(f"{command} is not for a prefill worker")

    def actions(self) -> Iterator[Action]:
        if self.stopped:
            return  # all its work goes through its engine's thread
        yield from super().actions()
        if not self.alive:
            return
        for decode, connection in self.connections.items():
            if connection.answers:
                yield lambda decode=decode: self._hear(decode)  # type: ignore[misc]
        for prompt in self.prompts.values():
            if prompt.num_read < prompt.num_tokens:
                yield lambda prompt=prompt: self._read(prompt)  # type: ignore[misc]

    def break_connections(self) -> None:
        """The network fails between live workers."""
        for decode in list(self.connections):
            self._close(decode, "reset")
            self.publish(m.PairBroken(decode, "reset"))

    def free_all(self) -> None:
        for attempt in list(self.prompts):
            self._cancel(attempt)

    def hang_up(self) -> None:
        if self._closes:
            for connection in self.connections.values():
                connection.close()

    def _join(self, decode: str) -> None:
        receiver = self._decodes[decode]
        if decode in self.connections:
            self.publish(m.PairJoined(decode, "shm"))
        elif not receiver.alive or self.incarnation in receiver.connections:
            self.publish(m.PairBroken(decode, "refused"))
        else:
            connection = Connection(receiver.memory)
            self.connections[decode] = receiver.connections[self.incarnation] = connection
            self.publish(m.PairJoined(decode, "shm"))

    def _close(self, decode: str, reason: str) -> None:
        connection = self.connections.pop(decode, None)
        if connection is not None:
            connection.close()
        for prompt in list(self.prompts.values()):
            if prompt.command.decode == decode:
                self._end(prompt, m.PrefillOutcome.PAIR_LOST, reason)

    def _start(self, command: m.Prefill) -> None:
        assert command.attempt not in self.prompts
        num_tokens = len(command.prompt_ids) + len(command.output_ids)
        blocks = self.blocks.allocate(Owner.ROW, command.attempt, -(-num_tokens // BLOCK_SIZE))
        assert blocks is not None, "the router gives no prompt for which there is no room"
        connection = self.connections.get(command.decode or "")
        prompt = self.prompts[command.attempt] = ReadPrompt(command, connection, blocks)
        if connection is not None:
            connection.begin(command.attempt)
        elif command.decode is not None:
            self._end(prompt, m.PrefillOutcome.PAIR_LOST, "no pair")

    def _read(self, prompt: ReadPrompt) -> None:
        if self.fails_next:
            self.fails_next = False
            if prompt.connection is not None:
                prompt.connection.last_word("stopped", prompt.command.attempt)
            self._end(prompt, m.PrefillOutcome.FAILED, "as told")
            return
        prompt.num_read = min(prompt.num_tokens, prompt.num_read + CHUNK_TOKENS)
        if prompt.num_read == prompt.num_tokens:
            command = prompt.command
            position = len(command.output_ids)
            token = self._model(command.prompt_ids[0], position)
            reason = finish_reason(token, position + 1, command.params, frozenset({EOS}))
            self.publish(m.FirstToken(command.attempt, position, token, reason, prompt.num_tokens))
        self._push(prompt)

    def _push(self, prompt: ReadPrompt) -> None:
        connection, attempt = prompt.connection, prompt.command.attempt
        read_all = prompt.num_read == prompt.num_tokens
        if connection is None:
            if read_all:
                self._end(prompt, m.PrefillOutcome.DONE)
            return
        if not prompt.accepted:
            return
        ready = len(prompt.blocks) if read_all else prompt.num_read // BLOCK_SIZE
        content = (attempt, prompt.command.prompt_ids[0])
        if not connection.push(attempt, prompt.num_pushed, ready - prompt.num_pushed, content):
            return
        prompt.num_pushed = ready
        if read_all and connection.last_word("written", attempt, ready):
            self._end(prompt, m.PrefillOutcome.DONE)

    def _hear(self, decode: str) -> None:
        connection = self.connections[decode]
        answer, attempt, blocks = connection.answers.popleft()
        prompt = self.prompts.get(attempt)
        match answer:
            case "accepted" if attempt in connection.open and prompt is not None:
                connection.open[attempt] = blocks
                prompt.accepted = True
                self._push(prompt)
            case "refused" if prompt is not None:
                del connection.open[attempt]
                self._end(prompt, m.PrefillOutcome.REFUSED)
            case "stop" if connection.last_word("stopped", attempt) and prompt is not None:
                self._end(prompt, m.PrefillOutcome.STOPPED)
            case "end":
                self._close(decode, "the decode worker closed the connection")
                self.publish(m.PairBroken(decode, "closed"))

    def _cancel(self, attempt: str) -> None:
        prompt = self.prompts.get(attempt)
        if prompt is not None:
            if prompt.connection is not None:
                prompt.connection.last_word("stopped", attempt)
            self._end(prompt, m.PrefillOutcome.STOPPED)

    def _end(self, prompt: ReadPrompt, outcome: m.PrefillOutcome, detail: str = "") -> None:
        attempt = prompt.command.attempt
        del self.prompts[attempt]
        self.blocks.free(prompt.blocks, attempt, Owner.ROW)
        self.publish(m.PrefillEnded(attempt, outcome, detail, self.load()))
