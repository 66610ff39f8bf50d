"""What the launcher needs to run a decode worker as an actor."""

from __future__ import annotations

from twinpool.worker.actor import Worker
from twinpool.worker.spec import WorkerSpec


def build_decode_worker(spec: WorkerSpec) -> Worker:
    """Make the worker, in the actor's process."""
    from decode_worker.worker import DecodeWorker  # noqa: PLC0415 (loads torch)

    return DecodeWorker(spec, actor_name=spec.actor_name)
