"""The router's end of its session with one worker: commands go out and events come in, each in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import grpc

from twinpool.channels import cluster_channel
from twinpool.errors import StartFailed, TakenOver
from twinpool.logs import without_words
from twinpool.protocol import SESSION
from twinpool.session.codec import COMMANDS, EVENTS
from twinpool.session.limits import SECRET_KEY, SESSION_OPTIONS
from twinpool.session.messages import Command, Event, Hello
from twinpool.v1 import worker_pb2 as pb
from twinpool.v1 import worker_pb2_grpc as pb_grpc
from twinpool.wire import UnknownMessage

log = logging.getLogger(__name__)


class SessionListener(Protocol):
    """Who hears a worker's events, on the event loop."""

    def __call__(self, event: Event) -> None:
        """Take one event; must not block."""
        ...


class WorkerSession:
    """One life of one session: `open`, then `run` until it ends, with `send` in between, and `close`."""

    def __init__(self, address: str, secret: str) -> None:
        self._channel = cluster_channel(address, SESSION_OPTIONS)
        self._secret = secret
        self._outgoing: asyncio.Queue[Command] = asyncio.Queue()
        self._call: grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse] | None = None

    async def open(self, timeout_s: float) -> Hello:
        """Dial; the worker's introduction. Raises StartFailed."""
        self._call = pb_grpc.WorkerStub(self._channel).Session(metadata=((SECRET_KEY, self._secret),))
        try:
            async with asyncio.timeout(timeout_s):
                first = await self._call.read()
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            await self.close()
            raise StartFailed(f"no session: {error}") from error
        event: Event | None = None
        with contextlib.suppress(UnknownMessage):
            event = EVENTS.decode(first) if isinstance(first, pb.SessionResponse) else None
            if isinstance(event, Hello) and SESSION.common(event.versions) is not None:
                return event
        await self.close()
        if isinstance(event, Hello):
            raise StartFailed(f"the worker speaks session protocol {event.versions}, the router {SESSION}")
        raise StartFailed("the worker did not introduce itself")

    def send(self, command: Command) -> None:
        """Send a command, after those sent before; dropped if the session has ended."""
        self._outgoing.put_nowait(command)

    async def run(self, listener: SessionListener) -> str:
        """Pass events on until the session ends; why it ended.

        Raises TakenOver where another router has the worker now.
        """
        assert self._call is not None  # noqa: S101 (open() was awaited)
        writer = asyncio.create_task(self._write(self._call))
        try:
            while isinstance(response := await self._call.read(), pb.SessionResponse):
                listener(EVENTS.decode(response))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.ABORTED:
                raise TakenOver(str(error.details())) from error
            return f"session lost: {error.details()}"
        except UnknownMessage as error:
            return f"session given up: {error}"
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        return "session ended"

    async def close(self) -> None:
        """End the session and the channel."""
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    async def _write(self, call: grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]) -> None:
        # A write fails only when the session has ended, which the reader hears too, and says.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            try:
                while True:
                    await call.write(COMMANDS.encode(await self._outgoing.get()))
            except (TypeError, ValueError) as error:
                # A command that cannot be written: a session that says nothing more must not look well.
                log.error("a command could not be sent:\n%s", without_words(error))
                call.cancel()
