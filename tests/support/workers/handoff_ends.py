"""The two ends of a hand-off for tests: small caches, real custody, and logs of all that either end hears."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decode_worker.custody import Custody
from twinpool.config import HandoffConfig
from twinpool.engine.fingerprint import Fingerprint, layout_fingerprint
from twinpool.engine.kernels.port import KernelFacts
from twinpool.kv.layout import KvLayout
from twinpool.kv.pool import BlockPool, Owner
from twinpool.kv.reservations import Opened
from twinpool.kv.storage import KvStorage
from twinpool.session.messages import Event, Reserve
from twinpool.transfer.handshake import Identity
from twinpool.types import AttemptId, HandoffId
from twinpool.worker.pulse import Pulse

WAIT_S = 10.0
"""Longer than anything here takes on a busy machine; a wait that long has failed."""
SECRET = "the cluster's secret"
KERNEL = KernelFacts("native avx2", "int4", "native 1")
BLOCK_TOKENS = 4
ATTEMPT = AttemptId("of whatever is reserved")
SMALL = KvLayout(num_layers=2, num_kv_heads=1, head_dim=8, block_size=BLOCK_TOKENS, dtype="float32")
LARGE = KvLayout(num_layers=16, num_kv_heads=8, head_dim=128, block_size=BLOCK_TOKENS, dtype="float32")
"""512 KiB a block: copies that last long enough to be met in the middle."""


class Heard:
    """What was heard, in order; waits for more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all: list[Any] = []

    def add(self, heard: Any) -> None:
        with self._changed:
            self._all.append(heard)
            self._changed.notify_all()

    def __call__(self) -> list[Any]:
        with self._changed:
            return list(self._all)

    def clear(self) -> None:
        with self._changed:
            self._all.clear()

    def wait_for(self, wanted: Any, within_s: float = WAIT_S) -> Any:
        """The first thing heard that equals `wanted`, or that `wanted`, a class or a predicate, fits."""

        def found() -> list[Any]:
            return [each for each in self._all if _fits(each, wanted)]

        with self._changed:
            assert self._changed.wait_for(found, within_s), f"not heard: {wanted}; but {self._all}"
            return found()[0]


def _fits(heard: Any, wanted: Any) -> bool:
    if isinstance(wanted, type):
        return isinstance(heard, wanted)
    return bool(wanted(heard)) if callable(wanted) else bool(heard == wanted)


class SenderLog:
    """The prefill side's `SenderEvents`, written down as tuples."""

    def __init__(self) -> None:
        self.heard = Heard()

    def accepted(self, handoff: HandoffId, num_shared: int) -> None:
        self.heard.add(("accepted", handoff, num_shared))

    def refused(self, handoff: HandoffId) -> None:
        self.heard.add(("refused", handoff))

    def stop_requested(self, handoff: HandoffId) -> None:
        self.heard.add(("stop", handoff))

    def pair_broken(self, decode: str, reason: str) -> None:
        self.heard.add(("broken", decode, reason))

    def wait_until_broken(self, within_s: float = WAIT_S) -> str:
        """Why."""
        return str(self.heard.wait_for(lambda each: each[0] == "broken", within_s)[2])


class ReceiverLog:
    """A decode side's `ReceiverEvents` that accepts what it was told to, written down as tuples.

    num_shared: with which everything accepted begins.
    """

    def __init__(self, *, blocks: dict[str, tuple[int, ...]] | None = None, num_shared: int = 0) -> None:
        self.heard = Heard()
        self.blocks = dict(blocks or {})
        self._num_shared = num_shared

    def begin(self, writer: str, handoff: HandoffId) -> Opened | None:
        self.heard.add(("begin", writer, handoff))
        return Opened(self.blocks[handoff], self._num_shared) if handoff in self.blocks else None

    def progress(self, writer: str, handoff: HandoffId) -> None:
        self.heard.add(("progress", writer, handoff))

    def written(self, writer: str, handoff: HandoffId, num_blocks: int, checksums: Sequence[int]) -> None:
        self.heard.add(("written", writer, handoff, num_blocks, tuple(checksums)))

    def stopped(self, writer: str, handoff: HandoffId) -> None:
        self.heard.add(("stopped", writer, handoff))

    def connection_ended(self, writer: str) -> None:
        self.heard.add(("ended", writer))

    def last_words(self, handoff: HandoffId) -> list[str]:
        return [each[0] for each in self.heard() if each[0] in ("written", "stopped") and each[2] == handoff]


class DecodeBlocks:
    """A decode worker's cache and custody without its engine; time passes when the test says so."""

    def __init__(self, storage: KvStorage, *, checksum: bool = False) -> None:
        self.storage = storage
        self.pool = BlockPool(storage.num_blocks)
        self.heard = Heard()
        self.now = 0.0
        self.rows: list[Any] = []
        self.custody = Custody(
            self.pool,
            storage.layout,
            HandoffConfig(checksum=checksum),
            Pulse(),
            checksum=storage.block_checksum,
            enter=self.rows.append,
            publish=self._publish,
            clock=lambda: self.now,
        )

    def _publish(self, event: Event) -> None:
        self.heard.add(event)

    def reserve(
        self, handoff: HandoffId, num_blocks: int, writer: str, ttl_s: float = 30.0
    ) -> tuple[int, ...]:
        """Set blocks aside; their ids."""
        self.custody.reserve(Reserve(handoff, (ATTEMPT,), num_blocks * BLOCK_TOKENS, writer, ttl_s))
        return self.blocks_of(handoff)

    def blocks_of(self, handoff: HandoffId) -> tuple[int, ...]:
        return tuple(block for block, (_, holder) in enumerate(self.pool.owners()) if holder == handoff)

    def num_free(self) -> int:
        with self.custody.lock:
            return self.pool.count(Owner.FREE)

    def bytes_of(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        return self.storage.blocks[list(blocks)]


def identity(
    incarnation: str,
    layout: KvLayout = SMALL,
    *,
    secret: str = SECRET,
    fields: Mapping[str, str] = MappingProxyType({}),
) -> Identity:
    """One end's identity; fields replace those of its fingerprint."""
    fingerprint: Fingerprint = layout_fingerprint(layout, KERNEL, weights_digest="digest", rope_theta=1e4)
    return Identity(incarnation, secret, {**fingerprint, **fields})


def random_storage(layout: KvLayout, num_blocks: int, seed: int = 0) -> KvStorage:
    """A cache with content."""
    storage = KvStorage(layout, num_blocks)
    storage.blocks[:] = np.random.default_rng(seed).integers(0, 256, storage.blocks.shape)
    return storage


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Started; the caller joins it."""
    thread = threading.Thread(target=work, name="test", daemon=True)
    thread.start()
    return thread


def join(thread: threading.Thread) -> None:
    thread.join(WAIT_S)
    assert not thread.is_alive()
