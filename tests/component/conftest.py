"""What component tests share: the default model, prepared once in the user's cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.component.shm_bench import ShmBench
from twinpool.config import DEFAULT_MODEL
from twinpool.model.config import PreparedModel
from twinpool.model.pull import pull


@pytest.fixture(scope="session")
def default_model() -> PreparedModel:
    """The model that `twinpool pull` fetches when none is named."""
    return PreparedModel.load(pull(DEFAULT_MODEL))


@pytest.fixture
def bench() -> Iterator[ShmBench]:
    """Ends of `shm` hand-offs; they end with the test, and their threads too."""
    bench = ShmBench()
    yield bench
    bench.end()
