"""What one connection may ask of the server: pings, silence, streams and metadata, over real sockets."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, PingAckReceived, RemoteSettingsChanged, StreamReset
from h2.settings import SettingCodes

from router.faces.grpc import transport
from tests.support.router.raw_client import PATIENCE_S, RawClient, raw_client
from tests.support.router.shell import Shell, failure_of, running_shell, token_prompt

FAST_PINGS = {"grpc.http2.min_ping_interval_without_data_ms": 100}
SHORT_IDLE = {"grpc.max_connection_idle_ms": 300}
ENOUGH_FOR_A_CALL = {"grpc.max_connection_idle_ms": 1000}


async def ping_and_hear(client: RawClient, interval_s: float) -> None:
    """More pings than strikes are allowed, each answered."""
    for number in range(transport.MAX_PING_STRIKES + 4):
        client.ping(number)
        acknowledged = await client.wait_for(PingAckReceived)
        assert acknowledged.ping_data == number.to_bytes(8, "big")
        await asyncio.sleep(interval_s)
    assert not any(isinstance(event, ConnectionTerminated) for event in client.events)


async def test_a_flood_of_pings_ends_its_own_connection_alone(shell: Shell) -> None:
    neighbour = aiter(shell.inference.Generate(token_prompt(request_id="neighbour")))
    stream = await shell.dispatcher.stream("neighbour")
    stream.put(65)
    assert (await anext(neighbour)).chunk.text == "A"
    async with raw_client(shell.address) as flooder:
        flooder.call("Generate", token_prompt(request_id="flooder"))
        silent = await shell.dispatcher.stream("flooder")
        flooder.ping(*range(20))
        word = await flooder.goodbye()
    assert (word.error_code, word.additional_data) == (ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
    await asyncio.wait_for(silent.closed.wait(), PATIENCE_S)
    stream.end(66)
    assert (await anext(neighbour)).chunk.text == "B"


async def test_pings_during_a_long_silent_prefill_are_welcome() -> None:
    async with running_shell(options=FAST_PINGS) as shell, raw_client(shell.address) as client:
        client.call("Generate", token_prompt())
        stream = await shell.dispatcher.stream("r")
        await ping_and_hear(client, interval_s=0.2)
        stream.end(65)
        await client.wait_for(DataReceived)


async def test_pings_without_a_call_are_welcome() -> None:
    async with running_shell(options=FAST_PINGS) as shell, raw_client(shell.address) as client:
        await ping_and_hear(client, interval_s=0.2)
        client.call("Generate", token_prompt())
        (await shell.dispatcher.stream("r")).end(65)
        await client.wait_for(DataReceived)


def test_a_client_that_pings_every_ten_seconds_is_far_from_a_strike() -> None:
    assert transport.MIN_PING_INTERVAL_MS <= 10_000 / 2


async def test_a_connection_without_a_call_is_closed_and_one_with_a_silent_call_is_not() -> None:
    async with running_shell(options=ENOUGH_FOR_A_CALL) as shell, raw_client(shell.address) as busy:
        busy.call("Generate", token_prompt())
        stream = await shell.dispatcher.stream("r")
        async with raw_client(shell.address) as idle:
            assert (await idle.goodbye()).additional_data == b"connection idle"
        stream.end(65)
        await busy.wait_for(DataReceived)


async def test_a_client_that_was_idle_is_served_again() -> None:
    async with running_shell(options=SHORT_IDLE) as shell:
        shell.dispatcher.on_submit = lambda stream: stream.end(65)
        for number in range(2):
            call = shell.inference.Generate(token_prompt(request_id=f"r{number}"))
            assert [message.chunk.text async for message in call] == ["A"]
            async with asyncio.timeout(PATIENCE_S):
                while shell.channel.get_state() is grpc.ChannelConnectivity.READY:
                    await asyncio.sleep(0.02)


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with running_shell(options={"grpc.server_handshake_timeout_ms": 300}) as shell:
        reader, writer = await asyncio.open_connection(shell.address.host, shell.address.port)
        async with asyncio.timeout(PATIENCE_S):
            while await reader.read(4096):
                pass
        writer.close()


async def test_the_number_of_streams_is_announced(shell: Shell) -> None:
    async with raw_client(shell.address) as client:
        settings = await client.wait_for(RemoteSettingsChanged)
        streams = settings.changed_settings[SettingCodes.MAX_CONCURRENT_STREAMS]
        assert streams.new_value == transport.MAX_STREAMS


async def test_a_stream_too_many_is_refused_and_the_others_go_on() -> None:
    two = {"grpc.max_concurrent_streams": 2}
    async with running_shell(options=two) as shell, raw_client(shell.address) as client:
        ids = [client.call("Generate", token_prompt(request_id=f"r{number}")) for number in range(3)]
        assert (await client.wait_for(StreamReset)).stream_id == ids[2]
        for number in range(2):
            (await shell.dispatcher.stream(f"r{number}")).end(65)
            await client.wait_for(DataReceived)


@pytest.mark.parametrize(("num_bytes", "fits"), [(12 * 1024, True), (20 * 1024, False), (2**20, False)])
async def test_metadata_fits_or_does_not_and_chance_has_no_say(
    shell: Shell, num_bytes: int, fits: bool
) -> None:
    shell.dispatcher.on_submit = lambda stream: stream.end(65)
    for number in range(8):
        metadata = (("large", "x" * num_bytes),)
        call = shell.inference.Generate(token_prompt(request_id=f"r{number}"), metadata=metadata)
        if fits:
            assert [message.chunk.text async for message in call] == ["A"]
        else:
            assert (await failure_of(call)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert bool(shell.dispatcher.streams) is fits
