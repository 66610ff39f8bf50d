"""A prefill and a decode worker in this process, as plain Python: real engines, shared memory and sockets."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from decode_worker.worker import DecodeWorker
from prefill_worker.worker import PrefillWorker
from tests.support.workers.scripted_transport import Script
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.config import EngineConfig, HandoffConfig
from twinpool.kv.pool import Owner
from twinpool.session.messages import LoadReport
from twinpool.types import Pool
from twinpool.worker.spec import WorkerSpec

SECRET = "the cluster's secret"
REST_S = 10.0
KV_MEMORY_MIB = 32
"""45 blocks of 16 tokens of the default model in float32."""
NUM_BLOCKS = 45
BLOCK_BYTES = 16 * 30 * 2 * 3 * 64 * 4
"""Tokens, layers, K and V, KV heads, head size, float32."""


class RunningWorkers:
    """Both are up when made. script: what goes wrong between them. handoff: settings of `HandoffConfig`."""

    def __init__(self, model: PreparedModel, **handoff: Any) -> None:
        self.script = Script()
        self._handoff = HandoffConfig(transport="shm", **handoff)
        self._model = model
        self._stopped: set[Pool] = set()
        self.decode = DecodeWorker(self.spec(Pool.DECODE))
        self.prefill = PrefillWorker(self.spec(Pool.PREFILL), connect=self.script.connector())
        self.decode_address = f"127.0.0.1:{self.decode.start()}"
        self.prefill_address = f"127.0.0.1:{self.prefill.start()}"

    def stop(self) -> None:
        """Stop both, and forget them."""
        self.script.clear()
        self.stop_one(Pool.PREFILL)
        self.stop_one(Pool.DECODE)

    def stop_one(self, pool: Pool) -> None:
        """Stop a worker, unless it was stopped before."""
        if pool not in self._stopped:
            self._stopped.add(pool)
            (self.prefill if pool is Pool.PREFILL else self.decode).stop()

    def what_is_held(self) -> list[str]:
        """What workers without requests do not hold, in words."""
        load = replace(self.decode.custody.load(), progress=0, step_s=0.0, cpu_s=0.0, rss_bytes=0)
        held = [] if load == LoadReport(blocks_free=NUM_BLOCKS) else [f"{load}"]
        if self.prefill.pool.count(Owner.FREE) != NUM_BLOCKS:
            held.append(f"{self.prefill.pool.owners()}")
        return held

    async def wait_until_at_rest(self) -> None:
        deadline = time.monotonic() + REST_S
        while (held := self.what_is_held()) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert not held

    def spec(self, pool: Pool) -> WorkerSpec:
        return WorkerSpec(
            worker_id=f"{pool}-0",
            pool=pool,
            incarnation=f"{pool}-0-{secrets.token_hex(4)}",
            model_folder=str(self._model.folder),
            dtype="float32",
            threads=1,
            engine=EngineConfig(dtype="float32", kv_memory_mib=KV_MEMORY_MIB, threads=1, step_target_ms=0),
            handoff=self._handoff,
            secret=SECRET,
        )


StartWorkers = Callable[..., RunningWorkers]
"""Starts a pair with the settings given; see `start_workers` among the fixtures of component tests."""
