"""The router's end of its session with one worker: a stream of control and one of work, each in order.

`twinpool.session.streams` says what goes over which. The session ends with the first of the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Any, Protocol

import grpc

from twinpool.channels import async_cluster_channel
from twinpool.errors import StartFailed, TakenOver
from twinpool.logs import without_words
from twinpool.protocol import SESSION
from twinpool.session.codec import (
    CONTROL_COMMANDS,
    CONTROL_EVENTS,
    WORK_COMMANDS,
    WORK_EVENTS,
    Direction,
)
from twinpool.session.limits import ROUTER_KEY, SECRET_KEY, SESSION_OPTIONS
from twinpool.session.messages import Command, ControlCommand, Event, Hello
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
        self._channel = async_cluster_channel(address, SESSION_OPTIONS)
        self._metadata = ((SECRET_KEY, secret), (ROUTER_KEY, secrets.token_hex(8)))
        stub = pb_grpc.WorkerStub(self._channel)
        self._control = _Stream(stub.Control, CONTROL_COMMANDS, CONTROL_EVENTS)
        self._work = _Stream(stub.Work, WORK_COMMANDS, WORK_EVENTS)

    async def open(self, timeout_s: float) -> Hello:
        """Dial; the worker's introduction. Raises StartFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                self._control.dial(self._metadata)
                hello = await self._introduction()
                self._work.dial(self._metadata)
                await self._work.opened()
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            await self.close()
            raise StartFailed(f"no session: {error}") from error
        except StartFailed:
            await self.close()
            raise
        return hello

    async def _introduction(self) -> Hello:
        event: Event | None = None
        with contextlib.suppress(UnknownMessage):
            event = await self._control.read()
        if not isinstance(event, Hello):
            raise StartFailed("the worker did not introduce itself")
        if SESSION.common(event.versions) is None:
            raise StartFailed(f"the worker speaks session protocol {event.versions}, the router {SESSION}")
        return event

    def send(self, command: Command) -> None:
        """Send a command, after those sent before over its stream; dropped if the session has ended."""
        stream = self._control if isinstance(command, ControlCommand) else self._work
        stream.outgoing.put_nowait(command)

    async def run(self, listener: SessionListener) -> str:
        """Pass events on until the session ends; why it ended.

        Raises TakenOver where another router has the worker now.
        """
        running = [asyncio.create_task(each.run(listener)) for each in (self._control, self._work)]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            return next(each for each in running if each in done).result()
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def close(self) -> None:
        """End the session and the channel."""
        self._work.close()
        self._control.close()
        await self._channel.close()


class _Stream:
    """One of the two. outgoing: the commands still to be written."""

    def __init__(self, method: Any, commands: Direction[Any, Any], events: Direction[Any, Any]) -> None:
        self.outgoing: asyncio.Queue[Command] = asyncio.Queue()
        self._method = method
        self._commands = commands
        self._events = events
        self._call: Any = None

    def dial(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Begin to open it."""
        self._call = self._method(metadata=metadata)

    async def opened(self) -> None:
        """Wait until the worker has opened it, too, or has refused: `run` says so."""
        await self._call.initial_metadata()

    async def read(self) -> Event | None:
        """The next event; None at the end. Raises AioRpcError and UnknownMessage."""
        response = await self._call.read()
        return None if response is grpc.aio.EOF else self._events.decode(response)

    async def run(self, listener: SessionListener) -> str:
        """See `WorkerSession.run`."""
        writer = asyncio.create_task(self._write())
        try:
            while (event := await self.read()) is not None:
                listener(event)
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

    def close(self) -> None:
        """End it, if it was opened."""
        if self._call is not None:
            self._call.cancel()

    async def _write(self) -> None:
        # A write fails only when the session has ended, which the reader hears too, and says.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            try:
                while True:
                    await self._call.write(self._commands.encode(await self.outgoing.get()))
            except (TypeError, ValueError) as error:
                # A command that cannot be written: a session that says nothing more must not look well.
                log.error("a command could not be sent:\n%s", without_words(error))
                self._call.cancel()
