"""How long a worker may stand still before the router replaces it, in tests: for ever, or no time at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.system.running import RunningSystem
from twinpool.config import RouterConfig

PATIENT_S = 60.0
"""For `stuck_after_s`: no machine is so busy that an engine stands still for so long, so nothing replaces
a worker but what the test does to it."""
PATIENT = RouterConfig(grace_s=2.0, stuck_after_s=PATIENT_S)


@contextmanager
def impatient(system: RunningSystem, stuck_after_s: float = 2.0) -> Iterator[None]:
    """Workers that stand still are replaced soon, until the end of the block."""
    watch = system.system.dispatcher.scheduler._watch

    def set_to(seconds: float) -> None:
        watch._stuck_after_s = seconds

    system.call(lambda: set_to(stuck_after_s))
    try:
        yield
    finally:
        system.call(lambda: set_to(PATIENT_S))
