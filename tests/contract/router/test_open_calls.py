"""How many calls may be open over all connections, and how large their messages together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from router.entrance import open_calls
from tests.support.router.shell import Shell, detail, failure_of, reason_of, running_shell, token_prompt
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import types_pb2
from twinpool.v1.inference_pb2_grpc import InferenceStub

PATIENCE_S = 10.0
MOST = 3


@pytest.fixture
async def shell(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shell]:
    """Takes MOST requests at a time, of which one could wait in the queue."""
    monkeypatch.setattr(open_calls, "MOST_BESIDE_QUEUE", MOST - 1)
    async with running_shell(queue_max_requests=1) as shell:
        yield shell


async def fill(shell: Shell, number: int = MOST) -> list[Any]:
    """So many requests in flight, which the server has."""
    open_calls = [shell.inference.Generate(token_prompt(request_id=f"r{index}")) for index in range(number)]
    for index in range(number):
        await asyncio.wait_for(shell.dispatcher.stream(f"r{index}"), PATIENCE_S)
    return open_calls


def another_connection(shell: Shell) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(str(shell.address), (("grpc.use_local_subchannel_pool", 1),))


def silent_call(channel: grpc.aio.Channel, method: str = "Generate") -> Any:
    """A call whose message does not come."""
    return channel.stream_stream(f"/twinpool.v1.Inference/{method}")()


async def until_counted(shell: Shell, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while shell.server._calls._open._entered["requests"] != number:
            await asyncio.sleep(0.01)


async def test_a_request_too_many_is_refused_unread_whatever_connection_it_comes_over(shell: Shell) -> None:
    await fill(shell)
    async with another_connection(shell) as channel:
        error = await asyncio.wait_for(failure_of(silent_call(channel)), PATIENCE_S)
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
    assert str(MOST) in (error.details() or "")
    assert detail(error, error_details_pb2.RetryInfo) is not None
    assert shell.count("requests_total", method="Generate", code="RESOURCE_EXHAUSTED") == 1
    chat: Any = InferenceStub(shell.channel).Chat(pb.ChatRequest())
    assert reason_of(await failure_of(chat)) == "TOO_MANY_CALLS"


async def test_health_is_answered_and_an_abort_makes_room_while_there_is_none(shell: Shell) -> None:
    first, *_ = await fill(shell)
    async with another_connection(shell) as channel:
        health: Any = HealthStub(channel)
        checked = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert checked.status == health_pb2.HealthCheckResponse.SERVING
        watched = aiter(health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S))
        assert (await anext(watched)).status == health_pb2.HealthCheckResponse.SERVING
        await shell.inference.Abort(pb.AbortRequest(request_ids=["r0"]))
        assert [message.chunk.finish_reason async for message in first] == [types_pb2.FINISH_REASON_ABORT]
        shell.dispatcher.on_submit = lambda stream: stream.end(65)
        await until_counted(shell, MOST - 1)
        (answer,) = [message async for message in shell.inference.Generate(token_prompt())]
        assert answer.chunk.text == "A"


async def test_a_call_whose_message_never_came_counts_until_its_client_leaves(shell: Shell) -> None:
    async with another_connection(shell) as channel:
        silent = silent_call(channel)
        await until_counted(shell, 1)
        await fill(shell, MOST - 1)
        assert reason_of(await failure_of(shell.inference.Generate(token_prompt()))) == "TOO_MANY_CALLS"
        silent.cancel()
        await until_counted(shell, MOST - 1)
    shell.dispatcher.on_submit = lambda stream: stream.end(65)
    assert len([message async for message in shell.inference.Generate(token_prompt())]) == 1


async def test_other_methods_are_bounded_each_by_itself(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_calls, "MOST_OF_OTHERS", 0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await shell.inference.ListModels(pb.ListModelsRequest())
    assert reason_of(caught.value) == "TOO_MANY_CALLS"


async def test_large_messages_are_refused_while_others_take_the_memory(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_calls, "MOST_BYTES", 1000)
    large = pb.GenerateRequest(request_id="large", token_ids=pb.TokenIds(ids=[1] * 600))
    call = shell.inference.Generate(large)
    stream = await asyncio.wait_for(shell.dispatcher.stream("large"), PATIENCE_S)
    error = await failure_of(shell.inference.Generate(large))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
    assert "1000" in (error.details() or "")
    await fill(shell, 1)
    stream.end(65)
    assert len([message async for message in call]) == 1
