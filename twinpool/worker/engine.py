"""What both kinds of worker build first: cache memory, engine, and the identity shown to pairs."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.cpus import machine_cpus, usable_cpus
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.fingerprint import layout_fingerprint
from twinpool.engine.kernels.cores import SharedCores
from twinpool.engine.kernels.port import KernelSettings
from twinpool.engine.runner import Engine
from twinpool.errors import StartFailed
from twinpool.kv.layout import KvLayout
from twinpool.kv.storage import KvStorage
from twinpool.transfer.handshake import Identity
from twinpool.transfer.shared_memory import create_shared
from twinpool.worker.pulse import Pulse
from twinpool.worker.spec import WorkerSpec

log = logging.getLogger(__name__)
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WorkerEngine:
    """An engine over its own cache.

    descriptor: the cache's shared memory, kept for the process's life; None where it is private.
    cores: this worker's slot in the node's ledger of busy cores; to be closed with the worker.
    """

    engine: Engine
    storage: KvStorage
    identity: Identity
    eos_token_ids: frozenset[int]
    descriptor: int | None
    cores: SharedCores | None

    @property
    def layout(self) -> KvLayout:
        """The cache's layout."""
        return self.storage.layout

    @property
    def num_blocks(self) -> int:
        """Blocks in the cache."""
        return self.storage.num_blocks


def load_worker_engine(spec: WorkerSpec, pulse: Pulse, *, shared: bool) -> WorkerEngine:
    """Load weights, allocate and touch the cache, warm up.

    pulse: beats with every layer computed. shared: put the cache where senders on this host can write into
    it (Linux). Raises StartFailed where the weights are not the router's, the memory budget holds no block,
    or the memory is not there.
    """
    model = PreparedModel.load(Path(spec.model_folder))
    if spec.model_digest and model.digest != spec.model_digest:
        raise StartFailed(f"{spec.model_folder} holds other weights here than on the router's node")
    layout = cache_layout(model.description, block_size=spec.engine.block_size, dtype=spec.dtype)
    num_blocks = layout.num_blocks(spec.engine.kv_memory_mib * MIB)
    if num_blocks < 1:
        raise StartFailed(
            f"kv-memory-mib {spec.engine.kv_memory_mib} holds no block of {layout.block_bytes} bytes"
        )
    storage, descriptor = _allocate(layout, num_blocks, shared and sys.platform == "linux")
    share, cores = _threads(spec), None
    if spec.shares_cores:
        cores = SharedCores.claim(usable_cpus(), share)
    settings = KernelSettings(
        weights=spec.engine.weights,
        kernels=spec.engine.kernels,
        threads=share if cores is None else usable_cpus(),
        exact=spec.engine.deterministic,
        cores=cores,
    )
    engine = Engine.load(model, storage, settings, pulse.layers)
    engine.warm_up()
    rope = model.description.layers[0].attention.rope
    fingerprint = layout_fingerprint(
        layout, engine.kernel.facts, weights_digest=model.digest, rope_theta=rope.theta
    )
    identity = Identity(spec.incarnation, spec.secret, fingerprint)
    return WorkerEngine(engine, storage, identity, frozenset(model.eos_token_ids), descriptor, cores)


def _threads(spec: WorkerSpec) -> int:
    """As told, but no more than this node lets us use CPUs: they would only wait for one another."""
    usable = usable_cpus()
    if spec.threads > usable:
        log.warning(
            "%s computes with %d threads instead of %d: of %d CPUs it may use no more",
            spec.worker_id,
            usable,
            spec.threads,
            machine_cpus(),
        )
    return min(spec.threads, usable)


def _allocate(layout: KvLayout, num_blocks: int, shared: bool) -> tuple[KvStorage, int | None]:
    if not shared:
        return KvStorage(layout, num_blocks), None
    try:
        descriptor, mapping = create_shared(num_blocks * layout.block_bytes, "twinpool-kv")
    except OSError as error:
        raise StartFailed(f"{num_blocks * layout.block_bytes} bytes of cache: {error}") from error
    return KvStorage(layout, num_blocks, buffer=mapping), descriptor
