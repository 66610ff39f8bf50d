"""A prefill worker that keeps the protocol: it reads prompts in any order and pushes as it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.property.simulated_pairs import Connection, Content
from tests.property.simulated_workers import BLOCK_SIZE, EOS, Action, Worker, World
from twinpool.kv.pool import Lease, Owner
from twinpool.session import messages as m
from twinpool.transfer.words import Accepted, Ended, Ending, PairLost, PairWord
from twinpool.types import Pool, finish_reason

CHUNK_TOKENS = 2


@dataclass(slots=True)
class ReadPrompt:
    """A prompt on a prefill worker."""

    command: m.Prefill
    connection: Connection | None
    lease: Lease
    num_read: int = 0
    num_pushed: int = 0
    accepted: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.command.prompt_ids) + len(self.command.output_ids)


class SimulatedPrefill(Worker):
    """prompts: those that it has, by attempt."""

    pool = Pool.PREFILL

    def __init__(self, worker_id: str, incarnation: str, world: World) -> None:
        super().__init__(worker_id, incarnation, world)
        self.prompts: dict[str, ReadPrompt] = {}

    @property
    def idle(self) -> bool:
        return not self.prompts and self.senders.idle and self.holds_nothing

    def load(self) -> m.LoadReport:
        free = self.blocks.count(Owner.FREE)
        return m.LoadReport(running=len(self.prompts), blocks_free=free, progress=self.pulse.turns)

    def obey(self, command: m.Command) -> None:
        match command:
            case m.JoinPair(decode):
                self.senders.join(decode)
            case m.LeavePair(decode):
                self.senders.leave(decode)
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
        for decode in self.senders.waiting():
            yield lambda decode=decode: self.senders.hear(decode)  # type: ignore[misc]
        for prompt in self.prompts.values():
            if prompt.num_read < prompt.num_tokens:
                yield lambda prompt=prompt: self._read(prompt)  # type: ignore[misc]

    def free_all(self) -> None:
        for attempt in list(self.prompts):
            self._cancel(attempt)

    def hear(self, word: PairWord) -> None:
        match word:
            case Accepted(attempt):
                if prompt := self.prompts.get(attempt):
                    prompt.accepted = True
                    self._push(prompt)
            case Ended(attempt, ending):
                if prompt := self.prompts.get(attempt):
                    refused = ending is Ending.REFUSED
                    self._end(prompt, m.PrefillOutcome.REFUSED if refused else m.PrefillOutcome.STOPPED)
            case PairLost(decode, reason):
                for prompt in list(self.prompts.values()):
                    if prompt.command.decode == decode:
                        self._end(prompt, m.PrefillOutcome.PAIR_LOST, reason)

    def _start(self, command: m.Prefill) -> None:
        assert command.attempt not in self.prompts
        num_tokens = len(command.prompt_ids) + len(command.output_ids)
        lease = self.blocks.lease(command.attempt, Owner.ROW, -(-num_tokens // BLOCK_SIZE))
        assert lease is not None, "the router gives no prompt for which there is no room"
        connection = self.senders.connections.get(command.decode or "")
        prompt = self.prompts[command.attempt] = ReadPrompt(command, connection, lease)
        if connection is not None:
            connection.begin(command.attempt)
        elif command.decode is not None:
            self._end(prompt, m.PrefillOutcome.PAIR_LOST, "no pair")

    def _read(self, prompt: ReadPrompt) -> None:
        if self.fails_next:
            self.fails_next = False
            if prompt.connection is not None:
                prompt.connection.stopped(prompt.command.attempt)
            self._end(prompt, m.PrefillOutcome.FAILED, "as told")
            return
        prompt.num_read = min(prompt.num_tokens, prompt.num_read + CHUNK_TOKENS)
        self._fill(prompt)
        if prompt.num_read == prompt.num_tokens:
            command = prompt.command
            position = len(command.output_ids)
            token = self.world.model(command.prompt_ids[0], position)
            reason = finish_reason(token, position + 1, command.params, frozenset({EOS}))
            self.publish(m.FirstToken(command.attempt, position, token, reason, prompt.num_tokens))
        self._push(prompt)

    def _fill(self, prompt: ReadPrompt) -> None:
        attempt, name = prompt.command.attempt, prompt.command.prompt_ids[0]
        for start, block in zip(range(0, prompt.num_read, BLOCK_SIZE), prompt.lease.blocks, strict=False):
            num_tokens = min(BLOCK_SIZE, prompt.num_read - start)
            self.memory[block] = Content(attempt, name, start, num_tokens)

    def _push(self, prompt: ReadPrompt) -> None:
        connection, attempt = prompt.connection, prompt.command.attempt
        read_all = prompt.num_read == prompt.num_tokens
        if connection is None:
            if read_all:
                self._end(prompt, m.PrefillOutcome.DONE)
            return
        if not prompt.accepted:
            return
        ready = len(prompt.lease.blocks) if read_all else prompt.num_read // BLOCK_SIZE
        if not connection.push(attempt, prompt.lease.blocks[prompt.num_pushed : ready], prompt.num_pushed):
            return
        prompt.num_pushed = ready
        if read_all and connection.written(attempt):
            self._end(prompt, m.PrefillOutcome.DONE)

    def _cancel(self, attempt: str) -> None:
        prompt = self.prompts.get(attempt)
        if prompt is not None:
            if prompt.connection is not None:
                prompt.connection.stopped(attempt)
            self._end(prompt, m.PrefillOutcome.STOPPED)

    def _end(self, prompt: ReadPrompt, outcome: m.PrefillOutcome, detail: str = "") -> None:
        attempt = prompt.command.attempt
        del self.prompts[attempt]
        self.blocks.release(prompt.lease)
        self.publish(m.PrefillEnded(attempt, outcome, detail, self.load()))
