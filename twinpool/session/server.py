"""A worker's end of its session with the router: one gRPC stream, served on an event loop of its own thread.

The life of a session: the router dials and shows the cluster's secret; the worker says `Hello`; commands
come in and events go out, each in order; when the stream ends, `session_lost` is called once. A newer
session ends an older one first, with ABORTED, so that at most one router is ever obeyed and the older one
knows that its workers live on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVarTuple

import grpc

from twinpool.session.codec import COMMANDS, EVENTS
from twinpool.session.limits import SECRET_KEY, SESSION_OPTIONS, TAKEN_OVER
from twinpool.session.messages import Command, Event, Hello
from twinpool.v1 import worker_pb2 as pb
from twinpool.v1 import worker_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)
STOP_GRACE_S = 1.0
START_TIMEOUT_S = 10.0
Arguments = TypeVarTuple("Arguments")


class SessionHandler(Protocol):
    """The worker behind a session. Called on the session's thread; nothing here may block."""

    def hello(self) -> Hello:
        """The worker introduces itself."""
        ...

    def command(self, command: Command) -> None:
        """The router wants something. An exception ends the session."""
        ...

    def session_lost(self) -> None:
        """No router is there any more: free all that it owned."""
        ...


class _Session:
    """One router's stream: the events still to be written to it; None ends it.

    superseded: another router has taken the worker over.
    """

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[Event | None] = asyncio.Queue()
        self.superseded = False


class _WorkerServicer(pb_grpc.WorkerServicer):
    def __init__(self, handler: SessionHandler, secret: str) -> None:
        self._handler = handler
        self._secret = secret
        self._current: _Session | None = None
        self._refusal = ""
        self.alone_since: float | None = time.monotonic()

    def publish(self, event: Event) -> None:
        if self._current is not None:
            self._current.outgoing.put_nowait(event)

    def refuse(self, why: str) -> None:
        """End the session after what is published already, and open none any more."""
        self._refusal = why
        if self._current is not None:
            self._current.outgoing.put_nowait(None)

    async def Session(  # noqa: N802 (gRPC's name)
        self,
        request_iterator: AsyncIterator[pb.SessionRequest],
        context: grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse],
    ) -> AsyncIterator[pb.SessionResponse]:
        await self._authenticate(context)
        if self._refusal:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._refusal)
        self.supersede()
        session = self._current = _Session()
        self.alone_since = None
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            yield EVENTS.encode(self._handler.hello())
            while (event := await session.outgoing.get()) is not None:
                yield EVENTS.encode(event)
            if session.superseded:
                await context.abort(grpc.StatusCode.ABORTED, TAKEN_OVER)
            if reader.done():
                reader.result()  # a command that failed ends the session as an error
        finally:
            reader.cancel()
            if self._current is session:
                self._lose_current()

    async def _authenticate(
        self, context: grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse]
    ) -> None:
        shown = dict(context.invocation_metadata() or ()).get(SECRET_KEY, "")
        if not hmac.compare_digest(str(shown).encode(), self._secret.encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong cluster secret")

    def supersede(self) -> None:
        """End the session, if there is one, in favour of another router's."""
        if self._current is not None:
            self._current.superseded = True
            self._current.outgoing.put_nowait(None)
            self._lose_current()

    def _lose_current(self) -> None:
        self._current = None
        self.alone_since = time.monotonic()
        self._handler.session_lost()

    async def _read(self, session: _Session, requests: AsyncIterator[pb.SessionRequest]) -> None:
        try:
            async for request in requests:
                if self._current is not session:
                    return  # a newer session took over; this one's end may still have to be written
                self._handler.command(COMMANDS.decode(request))
        except Exception:
            log.exception("the session with the router failed")
            raise
        finally:
            session.outgoing.put_nowait(None)


class SessionServer:
    """Serves `Worker.Session` on its own thread.

    host: where to listen; the port is free and returned by start(). publish() may be called from any
    thread; events published while no router is connected are dropped, since nobody owns anything then.
    """

    def __init__(self, handler: SessionHandler, secret: str, host: str) -> None:
        self._servicer = _WorkerServicer(handler, secret)
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="session", daemon=True)
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
        """End the session and stop listening; returns within about STOP_GRACE_S."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()

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
