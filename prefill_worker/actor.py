"""What the launcher needs to run a prefill worker as an actor."""

from __future__ import annotations

from twinpool.worker.actor import Worker
from twinpool.worker.spec import WorkerSpec


def build_prefill_worker(spec: WorkerSpec) -> Worker:
    """Make the worker, in the actor's process."""
    from prefill_worker.worker import PrefillWorker  # noqa: PLC0415 (loads torch)

    return PrefillWorker(spec)
