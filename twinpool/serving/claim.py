"""Whom a deployment on a shared cluster belongs to: of all its routers, the one that started last.

A router makes its claim before it looks for workers. So of two that start at one moment, too, one learns
that it is the older, and lets go.
"""

from __future__ import annotations

import asyncio
import logging

from twinpool.errors import StartFailed
from twinpool.serving.cluster import NAMESPACE
from twinpool.serving.ray_calls import last_line
from twinpool.serving.ray_internals import keep, kept

log = logging.getLogger(__name__)
TIMEOUT_S = 10.0


class Claim:
    """One router's, kept in the cluster's own table. router: its life's name, unique for all time.

    While it has not been made, nobody else's counts.
    """

    def __init__(self, deployment: str, router: str) -> None:
        self._key = f"router of {deployment}"
        self._value = router.encode()
        self._made = False

    async def make(self) -> None:
        """From now on older routers are taken over. Raises StartFailed if the cluster does not answer."""
        put = asyncio.to_thread(keep, self._key, self._value, NAMESPACE)
        try:
            await asyncio.wait_for(put, TIMEOUT_S)
        except Exception as error:
            raise StartFailed(f"the cluster does not take our claim: {last_line(error)}") from error
        self._made = True

    async def is_lost(self) -> bool:
        """Whether a later router has made its own; False where the cluster does not say."""
        if not self._made:
            return False
        get = asyncio.to_thread(kept, self._key, NAMESPACE)
        try:
            return (await asyncio.wait_for(get, TIMEOUT_S)) not in (None, self._value)
        except Exception as error:  # noqa: BLE001 (a cluster that is silent has not been taken over)
            log.warning("whether another router has taken over is not known: %s", last_line(error))
            return False
