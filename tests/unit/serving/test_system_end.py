"""The end of a system: a step that hangs is given up, and the next are done."""

from __future__ import annotations

import asyncio

import pytest

from twinpool.serving.system import _within


async def test_a_step_that_hangs_is_given_up_and_named(caplog: pytest.LogCaptureFixture) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    await _within(0.01, hang)
    assert "hang has not ended within 0.01 s" in caplog.text


async def test_a_step_that_fails_is_an_error() -> None:
    async def fail(with_what: str) -> None:
        raise RuntimeError(with_what)

    with pytest.raises(RuntimeError, match="as told"):
        await _within(1.0, fail, "as told")
