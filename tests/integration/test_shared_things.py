"""What `quiesce` looks for beside the books is seen when it is there."""

from __future__ import annotations

import os
import time

import pytest
import ray

from tests.support.system.shared_things import EMPTY_STORE, object_store, shared_memory

WAIT_S = 10.0


@pytest.mark.usefixtures("ray_session")
def test_object_left_in_the_store_is_seen() -> None:
    left = ray.put(bytes(4 << 20))
    assert EMPTY_STORE not in object_store()
    del left
    deadline = time.monotonic() + WAIT_S
    while EMPTY_STORE not in (summary := object_store()):
        assert time.monotonic() < deadline, summary


def test_shared_memory_left_open_is_seen() -> None:
    before = set(shared_memory(os.getpid()))
    descriptor = os.memfd_create("left")
    assert [each.split()[0] for each in set(shared_memory(os.getpid())) - before] == ["/memfd:left"]
    os.close(descriptor)
    assert set(shared_memory(os.getpid())) == before
