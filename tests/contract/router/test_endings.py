"""How calls end before their time: the client leaves, aborts or does not read, or the server stops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from router.entrance import deadlines
from tests.support.router.fakes import ByteTokenizer
from tests.support.router.shell import Shell, failure_of, fields_of, reason_of, running_shell, token_prompt
from twinpool.errors import ServerDraining
from twinpool.types import FinishReason
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import operations_pb2 as ops_pb
from twinpool.v1 import types_pb2

Code = grpc.StatusCode
PATIENCE_S = 10.0


async def test_a_client_that_leaves_closes_its_request(shell: Shell) -> None:
    call = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    stream.put(65)
    await anext(aiter(call))
    call.cancel()
    await asyncio.wait_for(stream.closed.wait(), PATIENCE_S)
    assert shell.count("client_disconnects_total") == 1
    assert shell.count("requests_total", method="Generate", code="CANCELLED") == 1


async def test_a_client_that_leaves_before_the_first_token_closes_its_request(shell: Shell) -> None:
    call = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    call.cancel()
    await asyncio.wait_for(stream.closed.wait(), PATIENCE_S)


async def test_a_deadline_closes_the_request_and_is_no_disconnect(shell: Shell) -> None:
    call = shell.inference.Generate(token_prompt(), timeout=2.0)
    stream = await shell.dispatcher.stream("r")
    error = await failure_of(call)
    assert error.code() is Code.DEADLINE_EXCEEDED
    await asyncio.wait_for(stream.closed.wait(), PATIENCE_S)
    assert shell.count("client_disconnects_total") == 0
    assert shell.count("requests_total", method="Generate", code="DEADLINE_EXCEEDED") == 1


async def test_a_finished_and_a_failed_request_are_closed(shell: Shell) -> None:
    shell.dispatcher.on_submit = lambda stream: stream.end(65)
    [message async for message in shell.inference.Generate(token_prompt(request_id="ends"))]
    shell.dispatcher.on_submit = lambda stream: stream.fail(ValueError())
    await failure_of(shell.inference.Generate(token_prompt(request_id="fails")))
    for stream in shell.dispatcher.streams.values():
        assert stream.closed.is_set()
    assert shell.count("requests_total", method="Generate", code="OK") == 1


async def test_abort_ends_the_stream_well_and_is_idempotent(shell: Shell) -> None:
    call = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    stream.put(65)
    messages = aiter(call)
    assert (await anext(messages)).chunk.text == "A"
    answer = await shell.inference.Abort(pb.AbortRequest(request_ids=["r", "never seen"]))
    assert [(result.request_id, result.outcome) for result in answer.results] == [
        ("r", pb.ABORT_OUTCOME_ABORTED),
        ("never seen", pb.ABORT_OUTCOME_NOT_IN_FLIGHT),
    ]
    (last,) = [message.chunk async for message in messages]
    assert last.finish_reason == types_pb2.FINISH_REASON_ABORT
    assert last.summary.usage.completion_tokens == 1
    assert await call.code() is Code.OK
    again = await shell.inference.Abort(pb.AbortRequest(request_ids=["r"]))
    assert again.results[0].outcome == pb.ABORT_OUTCOME_NOT_IN_FLIGHT


class HeldTokenizer(ByteTokenizer):
    """Does not answer before it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.asked.set()
        assert self.go.wait(PATIENCE_S)
        return super().encode(text, add_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        self.encode("")
        return super().apply_chat_template(messages)


async def test_abort_reaches_a_request_that_is_still_being_tokenized_and_ends_it_once() -> None:
    tokenizer = HeldTokenizer()
    async with running_shell(tokenizer=tokenizer) as shell:
        call = shell.inference.Generate(pb.GenerateRequest(request_id="r", text="hello"))
        await asyncio.to_thread(tokenizer.asked.wait, PATIENCE_S)
        once, twice = [await shell.inference.Abort(pb.AbortRequest(request_ids=["r"])) for _ in range(2)]
        assert once.results[0].outcome == pb.ABORT_OUTCOME_ABORTED
        assert twice.results[0].outcome == pb.ABORT_OUTCOME_NOT_IN_FLIGHT
        tokenizer.go.set()
        (last,) = [message.chunk async for message in call]
        assert last.finish_reason == types_pb2.FINISH_REASON_ABORT


@pytest.mark.parametrize("method", ["Generate", "Chat"])
async def test_a_request_has_waited_since_its_call_came_and_not_only_since_it_was_tokenized(
    method: str,
) -> None:
    tokenizer = HeldTokenizer()
    async with running_shell(tokenizer=tokenizer) as shell:
        called_at = time.monotonic()
        if method == "Chat":
            turns = [pb.ChatMessage(role="user", content="hello")]
            shell.inference.Chat(pb.ChatRequest(request_id="r", messages=turns))
        else:
            shell.inference.Generate(pb.GenerateRequest(request_id="r", text="hello"))
        await asyncio.to_thread(tokenizer.asked.wait, PATIENCE_S)
        held_at = time.monotonic()
        await asyncio.sleep(0.05)
        let_go_at = time.monotonic()
        tokenizer.go.set()
        stream = await shell.dispatcher.stream("r")
        assert let_go_at - held_at <= stream.request.waited_s <= time.monotonic() - called_at


async def test_a_deadline_that_passes_while_the_text_waits_is_told_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "TELL_S", 10.0)  # ample, for a busy machine: a fifth of the deadline
    tokenizer = HeldTokenizer()
    async with running_shell(tokenizer=tokenizer) as shell:
        try:
            error = await failure_of(shell.inference.Generate(pb.GenerateRequest(text="hello"), timeout=2.0))
        finally:
            tokenizer.go.set()
        assert (error.code(), reason_of(error)) == (Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
        assert shell.count("requests_expired_total", phase="queue") == 1
        assert shell.count("admission_rejections_total", reason="other") == 0
        assert not shell.dispatcher.streams


async def test_tokenizing_a_long_text_holds_up_nobody() -> None:
    tokenizer = HeldTokenizer()
    async with running_shell(tokenizer=tokenizer) as shell:
        call = shell.inference.Tokenize(pb.TokenizeRequest(text="long"))
        await asyncio.to_thread(tokenizer.asked.wait, PATIENCE_S)
        await shell.inference.ListModels(pb.ListModelsRequest())
        tokenizer.go.set()
        assert len((await call).token_ids) == 5


async def test_a_client_that_leaves_while_its_text_is_tokenized_submits_nothing() -> None:
    tokenizer = HeldTokenizer()
    async with running_shell(tokenizer=tokenizer) as shell:
        call = shell.inference.Generate(pb.GenerateRequest(request_id="r", text="hello"))
        await asyncio.to_thread(tokenizer.asked.wait, PATIENCE_S)
        call.cancel()
        while shell.count("client_disconnects_total") != 1:
            await asyncio.sleep(0.01)
        tokenizer.go.set()
        await shell.inference.Tokenize(pb.TokenizeRequest(text="x"))
        assert not shell.dispatcher.streams


async def test_a_slow_reader_is_cut_off_and_its_neighbour_keeps_its_pace() -> None:
    async with running_shell(slow_reader_s=2.0) as shell:
        slow = shell.inference.Generate(token_prompt(request_id="slow"))
        stream = await shell.dispatcher.stream("slow")
        for _ in range(20_000):
            stream.put(65)
            await asyncio.sleep(0)  # in a message of its own, while any is taken
        neighbour = shell.inference.Generate(token_prompt(request_id="neighbour"))
        pace = await shell.dispatcher.stream("neighbour")
        messages = aiter(neighbour)
        while not stream.closed.is_set():
            pace.put(66)
            assert (await asyncio.wait_for(anext(messages), PATIENCE_S)).chunk.text == "B"
        pace.end()
        assert (await anext(messages)).chunk.finish_reason == types_pb2.FINISH_REASON_LENGTH
        error = await failure_of(slow)
        assert (error.code(), reason_of(error)) == (Code.RESOURCE_EXHAUSTED, "SLOW_READER")
        assert "grpc-retry-pushback-ms" not in dict(error.trailing_metadata() or ())
        assert shell.count("requests_total", method="Generate", code="RESOURCE_EXHAUSTED") == 1
        assert shell.count("client_disconnects_total") == 0


async def test_a_stop_lets_streams_finish(shell: Shell) -> None:
    call = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    stopping = asyncio.create_task(shell.server.stop(grace_s=PATIENCE_S))
    stream.put(65)
    messages = aiter(call)
    assert (await anext(messages)).chunk.text == "A"
    assert not stopping.done()
    stream.end(66, reason=FinishReason.STOP)
    assert (await anext(messages)).chunk.finish_reason == types_pb2.FINISH_REASON_STOP
    await asyncio.wait_for(stopping, PATIENCE_S)


async def test_a_stop_tells_health_first_and_new_requests_why(shell: Shell) -> None:
    await shell.server.set_serving(True)
    health: Any = HealthStub(shell.channel)
    watch = aiter(health.Watch(health_pb2.HealthCheckRequest(service="twinpool.v1.Inference")))
    assert (await anext(watch)).status == health_pb2.HealthCheckResponse.SERVING
    call = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    shell.dispatcher.refusal = ServerDraining("the server is stopping", retry_after_s=1.0)
    stopping = asyncio.create_task(shell.server.stop(grace_s=PATIENCE_S))
    assert (await anext(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    refused = await failure_of(shell.inference.Generate(token_prompt(request_id="late")))
    assert (refused.code(), reason_of(refused)) == (Code.UNAVAILABLE, "SERVER_DRAINING")
    assert not stopping.done()
    stream.end(66)
    assert [message.chunk.text async for message in call] == ["B"]
    await asyncio.wait_for(stopping, PATIENCE_S)


async def test_when_grace_is_over_streams_end_typed(shell: Shell) -> None:
    calls = [shell.inference.Generate(token_prompt(request_id=f"r{number}")) for number in range(3)]
    streams = [await shell.dispatcher.stream(f"r{number}") for number in range(3)]
    watch = shell.operations.WatchStatus(ops_pb.WatchStatusRequest())
    await anext(aiter(watch))
    await shell.server.stop(grace_s=0.05)
    for call in calls:
        error = await failure_of(call)
        assert (error.code(), reason_of(error)) == (Code.UNAVAILABLE, "SERVER_DRAINING")
        assert fields_of(error) == []
    assert all(stream.closed.is_set() for stream in streams)
    assert (await failure_of(watch)).code() is Code.UNAVAILABLE
    assert shell.count("client_disconnects_total") == 0


async def test_a_watcher_of_the_status_does_not_hold_up_a_stop(shell: Shell) -> None:
    watch = shell.operations.WatchStatus(ops_pb.WatchStatusRequest())
    await anext(aiter(watch))
    await asyncio.wait_for(shell.server.stop(grace_s=60), PATIENCE_S)
