"""A decode side inside a real Ray actor: custody, blocks and `ray` receiver; words can be held back."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import ray

from tests.support.workers.handoff_ends import SMALL, WAIT_S, DecodeBlocks, identity
from twinpool.kv.storage import KvStorage
from twinpool.transfer.ray_receiver import RayReceiver
from twinpool.types import HandoffId
from twinpool.worker.actor import GROUPS

NUM_BLOCKS = 8


class DecodeSide:
    """Built like `WorkerActor`: senders' words and chunks have threads of their own."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self.begin_anew(checksum=False)

    def begin_anew(self, *, checksum: bool) -> None:
        """Forget all: another test begins."""
        self._blocks = DecodeBlocks(KvStorage(SMALL, NUM_BLOCKS), checksum=checksum)
        self._receiver = RayReceiver(
            identity(self._incarnation), self._blocks.storage, self._blocks.custody, WAIT_S
        )
        self._blocks.custody.attach(self._receiver)
        self._changed = threading.Condition()
        self._to_hold: Counter[str] = Counter()
        self._holding: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()

    @ray.method(concurrency_group="handoff")
    def hear_sender(self, word: str, *arguments: Any) -> Any:
        with self._changed:
            if self._to_hold[word]:
                self._to_hold[word] -= 1
                self._holding[word] += 1
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: not self._holding[word], WAIT_S)
        answer = self._receiver.hear(word, *arguments)
        with self._changed:
            self._answered[word] += 1
            self._changed.notify_all()
        return answer

    @ray.method(concurrency_group="chunk")
    def take_chunk(self, *arguments: Any) -> Any:
        return self.hear_sender("push", *arguments)

    def hold(self, word: str) -> None:
        """Keep the next such word waiting, and let later ones overtake it."""
        self._to_hold[word] += 1

    def let_go(self, word: str) -> None:
        with self._changed:
            self._holding[word] = 0
            self._changed.notify_all()

    def wait_until_held(self, word: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._holding[word], WAIT_S)

    def wait_until_answered(self, word: str, times: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._answered[word] >= times, WAIT_S)

    def reserve(self, handoff: HandoffId, num_blocks: int, writer: str) -> tuple[int, ...]:
        return self._blocks.reserve(handoff, num_blocks, writer)

    def give_up(self, handoff: HandoffId) -> None:
        assert self._blocks.custody.give_up(handoff) is None

    def fill(self, blocks: tuple[int, ...], byte: int) -> None:
        self._blocks.storage.blocks[list(blocks)] = byte

    def bytes_of(self, blocks: tuple[int, ...]) -> bytes:
        return self._blocks.bytes_of(blocks).tobytes()

    def num_free(self) -> int:
        return self._blocks.num_free()

    def heard(self) -> list[Any]:
        return self._blocks.heard()

    def wait_for(self, kind: type) -> Any:
        return self._blocks.heard.wait_for(kind)


def start_decode_side(incarnation: str) -> Any:
    """Its actor, found by its incarnation."""
    remote: Any = ray.remote
    actor_class = remote(num_cpus=1, max_restarts=0, max_concurrency=4, concurrency_groups=GROUPS)(DecodeSide)
    return actor_class.options(name=incarnation).remote(incarnation)
