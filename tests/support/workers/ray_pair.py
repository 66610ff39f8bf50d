"""The two sides of a `ray` hand-off: a receiver in an actor, and senders in this process."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from tests.support.workers.handoff_ends import SMALL, WAIT_S, SenderLog, identity, random_storage
from tests.support.workers.ray_decode_side import start_decode_side
from twinpool.transfer.port import HandoffSender
from twinpool.transfer.ray_sender import RaySender, connect_ray
from twinpool.types import HandoffId

ANSWER_S = 30.0
WRITER = "prefill-0-bb"


def ask(reference: Any) -> Any:
    answer: Any = ray.get(reference, timeout=ANSWER_S)
    return answer


class RayPair:
    """A decode side in an actor, and senders to it."""

    def __init__(self, decode: str, actor: Any, *, checksum: bool = False) -> None:
        self.decode = decode
        self.actor = actor
        ask(actor.begin_anew.remote(checksum=checksum))
        self.source = random_storage(SMALL, 8)
        self.log = SenderLog()
        self._checksum = checksum
        self._senders: list[HandoffSender] = []

    def connect(self, writer: str = WRITER) -> RaySender:
        sender = connect_ray(
            self.decode,
            self.decode,
            identity(writer),
            self.source,
            self.log,
            checksum=self._checksum,
            timeout_s=ANSWER_S,
        )
        self.own(sender)
        return sender

    def own(self, sender: HandoffSender) -> None:
        """Close it with the pair."""
        self._senders.append(sender)

    def reserve_and_begin(
        self, sender: RaySender, handoff: HandoffId, num_blocks: int, writer: str = WRITER
    ) -> tuple[int, ...]:
        """The reserved blocks."""
        blocks: tuple[int, ...] = ask(self.actor.reserve.remote(handoff, num_blocks, writer))
        sender.begin(handoff)
        self.log.heard.wait_for(("accepted", handoff, 0))
        return blocks

    def holds(self, reserved: tuple[int, ...], sent: list[int]) -> bool:
        """Whether reserved blocks hold the bytes of ours."""
        expected = self.source.blocks[sent].tobytes()
        return bool(ask(self.actor.bytes_of.remote(reserved)) == expected)

    def end(self) -> None:
        for sender in self._senders:
            sender.close()


@contextmanager
def running_actor() -> Iterator[tuple[str, Any]]:
    """Its name and its handle."""
    decode = f"decode-0-{secrets.token_hex(4)}"
    actor = start_decode_side(decode)
    yield decode, actor
    ray.kill(actor, no_restart=True)


@contextmanager
def running_pair(decode: str, actor: Any, *, checksum: bool = False) -> Iterator[RayPair]:
    before = set(threading.enumerate())
    pair = RayPair(decode, actor, checksum=checksum)
    yield pair
    pair.end()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("handoff"):
            thread.join(WAIT_S)
            assert not thread.is_alive()
