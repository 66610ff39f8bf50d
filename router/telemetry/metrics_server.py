"""Serves /metrics over HTTP, from threads of its own so that a scrape never holds up a token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from router.telemetry.gauges import SnapshotGauges
from router.telemetry.loop_lag import measure_loop_lag
from router.telemetry.metrics import Metrics
from twinpool.errors import StartFailed
from twinpool.views import Snapshot

SNAPSHOT_TIMEOUT_S = 2.0


class MetricsServer:
    """The HTTP end of `metrics`. snapshot: as `Dispatcher.snapshot`, called on the event loop."""

    def __init__(self, metrics: Metrics, snapshot: Callable[[], Snapshot]) -> None:
        self._metrics = metrics
        self._registry = metrics.registry
        self._snapshot = snapshot
        self._running: tuple[WSGIServer, threading.Thread, SnapshotGauges] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port taken (0 takes a free one). Raises StartFailed."""
        loop = asyncio.get_running_loop()

        async def taken() -> Snapshot:
            return self._snapshot()

        def take() -> Snapshot:
            # A loop that is stuck for longer fails the scrape, which is what its readers should see.
            return asyncio.run_coroutine_threadsafe(taken(), loop).result(SNAPSHOT_TIMEOUT_S)

        try:
            server, thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise StartFailed(f"cannot serve metrics on {host}:{port}: {error.strerror}") from error
        gauges = SnapshotGauges(take)
        self._registry.register(gauges)
        self._running = (server, thread, gauges)
        return server.server_port

    async def watch_loop(self) -> None:
        """Measure the lag of the event loop that this runs on; never returns."""
        await measure_loop_lag(self._metrics.loop_lagged)

    async def stop(self) -> None:
        """Close the port and end the thread; a second stop does nothing."""
        if self._running is None:
            return
        server, thread, gauges = self._running
        self._running = None
        await asyncio.to_thread(server.shutdown)
        await asyncio.to_thread(thread.join)
        server.server_close()
        self._registry.unregister(gauges)
