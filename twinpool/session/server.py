"""A worker's end of its session with a router, served on an event loop of its own thread.

The life of a session: the router dials and shows the cluster's secret; the worker says `Hello`; the router
opens the work; commands come in and events go out over the streams of `twinpool.session.streams`; when the
work ends, `work_lost` is called once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVarTuple

import grpc

from twinpool.session.limits import SESSION_OPTIONS
from twinpool.session.messages import Event
from twinpool.session.streams import SessionHandler, WorkerServicer
from twinpool.v1 import worker_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
START_TIMEOUT_S = 10.0
Arguments = TypeVarTuple("Arguments")


class SessionServer:
    """Serves both streams on its own thread.

    host: where to listen; the port is free and returned by start(). publish() may be called from any
    thread; events published while no router is connected are dropped, since nobody owns anything then.
    """

    def __init__(self, handler: SessionHandler, secret: str, host: str) -> None:
        self._servicer = WorkerServicer(handler, secret)
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._server: grpc.aio.Server | None = None

    def start(self) -> int:
        """Listen; the bound port."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_TIMEOUT_S)

    def publish(self, event: Event) -> None:
        """Send an event to the router, after those published before."""
        self._call(self._servicer.publish, event)

    def fail(self, why: str) -> None:
        """The worker cannot go on: end the session and refuse all others, so that the router replaces it."""
        self._call(self._servicer.refuse, why)

    def make_way(self) -> None:
        """Another router is about to open a session: the one that is open, if any, ends as superseded."""
        self._call(self._servicer.supersede)

    def seconds_alone(self) -> float:
        """How long no router has been there; 0 while one is."""
        since = self._servicer.alone_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        """End the session and stop listening; returns within about STOP_GRACE_S, or bounded, and says so."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        try:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(START_TIMEOUT_S)
        except TimeoutError:
            log.error("the session has not ended within %g s", START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("the session's thread has not ended within %g s", START_TIMEOUT_S)
        else:
            self._loop.close()

    def _run(self) -> None:
        """Until the loop is stopped; what has not ended by then is cancelled, and given STOP_GRACE_S."""
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=STOP_GRACE_S))

    async def _start(self) -> int:
        self._server = grpc.aio.server(options=SESSION_OPTIONS)
        pb_grpc.add_WorkerServicer_to_server(self._servicer, self._server)
        port = self._server.add_insecure_port(f"{self._host}:0")
        await self._server.start()
        return port

    def _call(self, function: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        # Other threads may outlive the session's; once its loop is closed there is nobody to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    async def _stop(self) -> None:
        self._servicer.refuse("the worker is leaving")
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
