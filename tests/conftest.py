"""What all tests share: a marker for each folder, and one Ray cluster for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from twinpool.serving.ray_environment import set_ray_environment

# Before anything imports Ray, which reads its settings only then.
set_ray_environment()
# As workers do, before torch is loaded: a thread of torch's that is done early sleeps until the others are.
# Else it keeps the core that they wait for: a test takes twenty times as long where anything else computes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Workers with faults are the tests' own; Ray's processes do not look for modules where pytest was started.
_ROOT = str(Path(__file__).parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))

# What tests share asserts too, and is to say what it found.
pytest.register_assert_rewrite("tests.support")

from tests.support.seconds_by_kind import SecondsByKind  # noqa: E402
from twinpool.serving.cluster import Cluster, ray_cluster  # noqa: E402

# The same cases every time, at whatever speed. `make test ARGS=--hypothesis-profile=default` draws new ones.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# The same, where only the first failure counts.
settings.register_profile(
    "unshrunk", settings.get_profile("steady"), phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile("steady")

_TESTS = Path(__file__).parent
NUM_WORKERS = 8
"""Most workers that run at one time over all tests."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SecondsByKind())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(item.path.relative_to(_TESTS).parts[0])


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Cluster]:
    """One real Ray cluster, started by the first test that needs it."""
    with ray_cluster("local", NUM_WORKERS) as cluster:
        yield cluster
