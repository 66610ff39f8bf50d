"""A client that speaks HTTP/2 itself, to do what no gRPC library does: flood, idle, open too many streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from google.protobuf.message import Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event

from router.faces.address import Address

E = TypeVar("E", bound=Event)
PATIENCE_S = 20.0


class ConnectionClosed(Exception):
    """The server has closed the connection."""


class RawClient:
    """One connection. events: everything heard so far, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self._reader = reader
        self._writer = writer
        self._authority = authority
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.http.initiate_connection()
        self._flush()
        self.events: list[Event] = []

    def ping(self, *numbers: int) -> None:
        """Send a ping for each number, all at once."""
        for number in numbers:
            self.http.ping(number.to_bytes(8, "big"))
        self._flush()

    def call(self, method: str, request: Message) -> int:
        """Start a call of one request; its stream's id."""
        stream_id = self.http.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/twinpool.v1.Inference/{method}"),
            (":authority", self._authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        body = request.SerializeToString()
        self.http.send_headers(stream_id, headers)
        self.http.send_data(stream_id, b"\0" + len(body).to_bytes(4, "big") + body, end_stream=True)
        self._flush()
        return stream_id

    async def wait_for(self, kind: type[E]) -> E:
        """The next event of a kind. Raises ConnectionClosed if the connection ends without one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                news = await self._hear()
                for event in news:
                    if isinstance(event, kind):
                        return event

    async def goodbye(self) -> ConnectionTerminated:
        """The server's last word before it closes the connection, which it has done afterwards."""
        word = await self.wait_for(ConnectionTerminated)
        with suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                while await self._reader.read(65536):
                    pass
        return word

    async def _hear(self) -> list[Event]:
        try:
            data = await self._reader.read(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise ConnectionClosed
        news: list[Event] = []
        for byte in data:
            # A byte at a time, because h2 takes nothing after a GOAWAY and gRPC sends more with it.
            news += self.http.receive_data(bytes([byte]))
            if news and isinstance(news[-1], ConnectionTerminated):
                break
        self.events += news
        self._flush()
        return news

    def _flush(self) -> None:
        self._writer.write(self.http.data_to_send())


@asynccontextmanager
async def raw_client(address: Address) -> AsyncIterator[RawClient]:
    """A connection, closed with the context."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield RawClient(reader, writer, str(address))
    finally:
        writer.close()
