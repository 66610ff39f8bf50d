"""One running shell for each contract test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.router.shell import Shell, running_shell


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    async with running_shell() as shell:
        yield shell
