"""A worker's end of the two streams that a router opens, both served on the session's event loop.

*Control* is about processes and the connections between them: who the worker is, pairs to join and to
leave, writers that are gone and writers to end. One router holds it at a time; a newer one ends the streams
of an older one, with ABORTED, so that the older one knows that its workers live on.

*Work* is about hand-offs and attempts, from `Reserve` and `Prefill` to `Released` and `PrefillEnded`. Counts
(`LoadReport`) and books (`Audited`) go with them, since both are compared with what was said before. What a
worker holds belongs to the stream that it came over: when that ends, it is freed. Only the router that
holds control may open it.

Each stream is in order; between the two no order is needed:

* A router sends `Prefill` and `MoveRow` once it has heard `PairJoined`, and opens the work after `Hello`.
* `WriterGone` may overtake a `Reserve` for that writer. The router drops that hand-off, in order with the
  `Reserve`; and what was not granted yet, no writer knows.
* `LeavePair` and `PairBroken` may come before or after what is under way in the pair, which is lost with it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine
from contextlib import aclosing
from typing import Any, Protocol

import grpc

from twinpool.session.codec import CONTROL_COMMANDS, CONTROL_EVENTS, WORK_COMMANDS, WORK_EVENTS, Direction
from twinpool.session.limits import ROUTER_KEY, SECRET_KEY, TAKEN_OVER
from twinpool.session.messages import (
    Admit,
    Command,
    ControlEvent,
    Event,
    Hello,
    Prefill,
    PrefillEnded,
    Refused,
    Released,
    Reserve,
)
from twinpool.types import AttemptId, HolderId
from twinpool.v1 import worker_pb2 as pb
from twinpool.v1 import worker_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)


class SessionHandler(Protocol):
    """The worker behind the streams. Called on the session's thread; nothing here may block."""

    def hello(self) -> Hello:
        """The worker introduces itself."""
        ...

    def command(self, command: Command) -> None:
        """The router wants something. An exception ends the stream."""
        ...

    def work_lost(self, holders: Collection[HolderId]) -> None:
        """Nobody is there any more who could want what these hold: free it."""
        ...


class _Stream:
    """One call of one router: the events still to be written to it; None ends it.

    superseded: another router has taken the worker over. is_over: nothing that still comes is obeyed.
    """

    def __init__(self, router: str) -> None:
        self.router = router
        self.outgoing: asyncio.Queue[Event | None] = asyncio.Queue()
        self.superseded = False
        self.is_over = False
        # Those that came over it and hold something; with each hand-off, which of its attempts do not yet.
        self._handoffs: dict[HolderId, set[AttemptId]] = {}
        self._attempts: set[HolderId] = set()

    @property
    def holders(self) -> Collection[HolderId]:
        """All that may hold something by what came over it."""
        return [*self._handoffs, *self._attempts]

    def came(self, command: Command) -> None:
        """What a command gives to whom."""
        match command:
            case Reserve(handoff, attempts):
                self._handoffs[handoff] = set(attempts)
            case Prefill(handoff, attempts):
                self._handoffs[handoff] = {attempt.id for attempt in attempts}
            case Admit(attempt, handoff):
                self._attempts.add(attempt)
                if awaited := self._handoffs.get(handoff):
                    awaited.discard(attempt)
                    if not awaited:
                        del self._handoffs[handoff]
            case _:
                pass

    def went(self, holder: HolderId) -> None:
        """It holds nothing any more."""
        self._handoffs.pop(holder, None)
        self._attempts.discard(holder)

    def end(self, *, superseded: bool = False) -> None:
        """After what is published already."""
        self.superseded |= superseded
        self.outgoing.put_nowait(None)


class WorkerServicer(pb_grpc.WorkerServicer):
    """Both streams; see above. All methods are called on the session's loop.

    alone_since: when the last router's control ended; None while one is there.
    """

    def __init__(self, handler: SessionHandler, secret: str) -> None:
        self._handler = handler
        self._secret = secret
        self._control: _Stream | None = None
        self._work: _Stream | None = None
        self._refusal = ""
        self.alone_since: float | None = time.monotonic()

    def publish(self, event: Event) -> None:
        """Send an event over its stream; dropped where that is not open."""
        stream = self._control if isinstance(event, ControlEvent) else self._work
        if stream is None:
            return
        match event:
            case Released(holder) | PrefillEnded(holder) | Refused(holder):
                stream.went(holder)
            case _:
                pass
        stream.outgoing.put_nowait(event)

    def refuse(self, why: str) -> None:
        """End both streams after what is published already, the work first, and open none any more."""
        self._refusal = why
        if stream := self._work or self._control:
            stream.end()

    def supersede(self) -> None:
        """End both streams, if they are open, in favour of another router's."""
        for stream in (self._work, self._control):
            if stream is not None:
                stream.end(superseded=True)
                self._close(stream)

    async def Control(  # noqa: N802 (gRPC's name)
        self,
        request_iterator: AsyncIterator[pb.ControlRequest],
        context: grpc.aio.ServicerContext[pb.ControlRequest, pb.ControlResponse],
    ) -> AsyncIterator[pb.ControlResponse]:
        router = await self._authenticated(context)
        self.supersede()
        stream = self._control = _Stream(router)
        self.alone_since = None
        stream.outgoing.put_nowait(self._handler.hello())
        commands = self._commands(stream, CONTROL_COMMANDS, request_iterator)
        async with aclosing(self._serve(stream, commands, CONTROL_EVENTS, context)) as responses:
            async for response in responses:
                yield response

    async def Work(  # noqa: N802 (gRPC's name)
        self,
        request_iterator: AsyncIterator[pb.WorkRequest],
        context: grpc.aio.ServicerContext[pb.WorkRequest, pb.WorkResponse],
    ) -> AsyncIterator[pb.WorkResponse]:
        router = await self._authenticated(context)
        if self._control is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the router has no control")
        elif self._control.router != router:
            await context.abort(grpc.StatusCode.ABORTED, TAKEN_OVER)
        if self._work is not None:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "the router's work is open already")
        stream = self._work = _Stream(router)
        await context.send_initial_metadata(())  # it is open now: whatever is published goes over it
        commands = self._commands(stream, WORK_COMMANDS, request_iterator)
        async with aclosing(self._serve(stream, commands, WORK_EVENTS, context)) as responses:
            async for response in responses:
                yield response

    async def _authenticated(self, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """The router's name."""
        shown = dict(context.invocation_metadata() or ())
        if not hmac.compare_digest(str(shown.get(SECRET_KEY, "")).encode(), self._secret.encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong cluster secret")
        if self._refusal:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._refusal)
        return str(shown.get(ROUTER_KEY, ""))

    async def _commands(
        self, stream: _Stream, direction: Direction[Any, Any], requests: AsyncIterator[Any]
    ) -> None:
        try:
            async for request in requests:
                if stream.is_over:
                    return  # another router took over; this one's end may still have to be written
                command = direction.decode(request)
                stream.came(command)
                self._handler.command(command)
        except Exception:
            log.exception("the session with the router failed")
            raise
        finally:
            stream.outgoing.put_nowait(None)

    async def _serve(
        self,
        stream: _Stream,
        commands: Coroutine[Any, Any, None],
        direction: Direction[Any, Any],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[Any, None]:
        reader = asyncio.create_task(commands)
        try:
            while (event := await stream.outgoing.get()) is not None:
                yield direction.encode(event)
            if stream.superseded:
                await context.abort(grpc.StatusCode.ABORTED, TAKEN_OVER)
            if reader.done():
                reader.result()  # a command that failed ends the stream as an error
        finally:
            reader.cancel()
            self._close(stream)

    def _close(self, stream: _Stream) -> None:
        """Once: what came over it is freed."""
        if stream.is_over:
            return
        stream.is_over = True
        if stream is self._control:
            self._control = None
            self.alone_since = time.monotonic()
        else:
            self._work = None
            self._handler.work_lost(stream.holders)
            if self._refusal and self._control is not None:
                self._control.end()
