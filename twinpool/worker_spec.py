"""What a worker is told when it is started; travels to the actor as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.config import EngineConfig, HandoffConfig
from twinpool.types import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One life of one worker.

    worker_id: its name, kept by its replacement. incarnation: this life's name, unique for all time.
    model_folder: the prepared folder, readable on the worker's node.
    dtype: float32 or bfloat16. threads: compute threads.
    host: where its session listens; empty takes the node's own address.
    secret: the cluster's; shown by every session and pair.
    """

    worker_id: str
    pool: Pool
    incarnation: str
    model_folder: str
    dtype: str
    threads: int
    engine: EngineConfig
    handoff: HandoffConfig
    host: str = "127.0.0.1"
    log_level: str = "warning"
    secret: str = field(repr=False)
