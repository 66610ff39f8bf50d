"""Keepers for the tests of pools, and the pauses between their starts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from router.pools import keeper, worker_life
from tests.support.router.keeping import Backoff, FakeSession, Keep, Kept


@pytest.fixture
def backoff(monkeypatch: pytest.MonkeyPatch) -> Backoff:
    times = Backoff()
    monkeypatch.setattr(keeper, "BACKOFF_S", times)
    return times


@pytest.fixture
async def keep(monkeypatch: pytest.MonkeyPatch, backoff: Backoff) -> AsyncIterator[Keep]:
    """Makes keepers; stops them after the test, when no task of theirs may have failed."""
    made: list[Kept] = []

    async def make(prefill: int = 1, decode: int = 1, *, starts: bool = True) -> Kept:
        kept = Kept(prefill, decode)
        made.append(kept)
        monkeypatch.setattr(FakeSession, "launcher", kept.launcher, raising=False)
        if starts:
            await kept.start()
        return kept

    monkeypatch.setattr(worker_life, "WorkerSession", FakeSession)
    monkeypatch.setattr(worker_life, "EXIT_KNOWN_S", 0.0)
    yield make
    for kept in made:
        await kept.keeper.stop()
        assert kept.broken == []
        assert all(life.is_over or life.released for life in kept.launcher.lives)
