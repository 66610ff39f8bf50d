"""A scripted server for the tests of everything that dials one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clients.fake_server import FakeServer, running_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running_server() as server:
        yield server
