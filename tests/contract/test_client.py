"""The Python client against a scripted server over a real socket."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from router.entrance.codes import CODES
from tests.support.clients.fake_server import FakeServer
from twinpool import AsyncClient, Client, errors
from twinpool.client import (
    AsyncOperationsClient,
    AsyncStream,
    Chunk,
    OperationsClient,
    Options,
    ServerUnreachable,
)
from twinpool.client.verification import BlockHolding, BlockUsage
from twinpool.types import FinishReason, ModelCard, ServedBy, Timing, Usage
from twinpool.v1 import inference_pb2, operations_pb2, sampling_pb2

CANCEL_BOUND_S = 10.0
HELLO = [{"role": "user", "content": "hello"}]

METHODS = {
    "Generate": "generate",
    "Chat": "chat",
    "Abort": "abort",
    "Tokenize": "tokenize",
    "Detokenize": "detokenize",
    "ListModels": "models",
    "GetStatus": "status",
    "WatchStatus": "watch",
    "CheckPairs": "check_pairs",
    "Verify": "verify",
    "SetPoolSize": "set_pool_size",
    "DrainWorker": "drain_worker",
    "RestartWorkers": "restart",
}


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


@pytest.mark.parametrize(
    ("service", "clients"),
    [
        (inference_pb2.DESCRIPTOR.services_by_name["Inference"], (Client, AsyncClient)),
        (operations_pb2.DESCRIPTOR.services_by_name["Operations"], (OperationsClient, AsyncOperationsClient)),
    ],
    ids=["Inference", "Operations"],
)
def test_every_rpc_has_a_method_in_both_clients(service: Any, clients: tuple[type, type]) -> None:
    for rpc in service.methods_by_name:
        for kind in clients:
            assert callable(getattr(kind, METHODS[rpc])), f"{kind.__name__} lacks {rpc}"


def test_every_sampling_and_output_field_is_an_option() -> None:
    messages = (sampling_pb2.SamplingParams, inference_pb2.OutputOptions)
    fields = {field.name for message in messages for field in message.DESCRIPTOR.fields}
    assert fields <= Options.__annotations__.keys()


# Answers


def test_generate_yields_the_chunks_as_they_come(client: Client) -> None:
    chunks = list(client.generate("hello"))
    assert [chunk.text for chunk in chunks] == ["caf", "", "é"]
    assert [chunk.token_ids for chunk in chunks] == [(7,), (8,), (9,)]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, FinishReason.LENGTH]
    assert [chunk.summary is None for chunk in chunks] == [True, True, False]


def test_complete_returns_the_whole(client: Client) -> None:
    completion = client.complete("hello")
    assert (completion.text, completion.token_ids) == ("café", (7, 8, 9))
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.usage == Usage(prompt_tokens=3, completion_tokens=3)
    assert completion.timing == Timing(queue_s=0.5, prefill_s=0.25, handoff_wait_s=0.125, decode_s=1)
    assert completion.workers == ServedBy("prefill-0", "decode-0")
    assert completion.seed == 2**64 - 1
    assert completion.prompt_token_ids == (1, 2, 3)


def test_chat_answers_a_conversation(client: Client, server: FakeServer) -> None:
    assert client.complete_chat(HELLO, max_tokens=5).text == "café"
    assert "".join(chunk.text for chunk in client.chat(HELLO)) == "café"
    request = server.inference.requests[0]
    assert isinstance(request, inference_pb2.ChatRequest)
    assert (request.messages[0].role, request.sampling.max_tokens) == ("user", 5)


def test_absent_options_stay_absent_on_the_wire(client: Client, server: FakeServer) -> None:
    client.complete([5, 6], max_tokens=None, request_id="mine")
    client.complete("x", temperature=0.0, top_k=0, seed=0, skip_special_tokens=False, ignore_eos=True)
    ids, text = server.inference.requests
    assert isinstance(ids, inference_pb2.GenerateRequest)
    assert isinstance(text, inference_pb2.GenerateRequest)
    assert list(ids.token_ids.ids) == [5, 6]
    assert ids.request_id == "mine"
    assert not ids.sampling.ListFields()
    given = {field.name for field, _ in text.sampling.ListFields()}
    assert given == {"temperature", "top_k", "seed", "ignore_eos"}
    assert text.output.HasField("skip_special_tokens")


def test_a_request_id_is_drawn_so_that_the_caller_can_abort(client: Client, server: FakeServer) -> None:
    with client.generate("hello") as first, client.generate("hello") as second:
        assert first.request_id != second.request_id
        list(first)
        list(second)
    sent = {getattr(request, "request_id", None) for request in server.inference.requests}
    assert sent == {first.request_id, second.request_id}


def test_the_small_calls(client: Client) -> None:
    assert client.abort(["running", "never-seen"]) == {"running": True, "never-seen": False}
    assert client.abort("running") == {"running": True}
    assert client.tokenize("ab") == (97, 98)
    assert client.detokenize([97, 98]) == "ab"
    assert client.models() == (ModelCard("tiny", 64, 256, (2,), "float32"),)


def test_messages_of_five_megabytes_pass_both_ways(client: Client) -> None:
    text = "echo " + "x" * 5_000_000
    assert client.complete(text).text == text


async def test_the_asynchronous_client_does_the_same(server: FakeServer) -> None:
    async with AsyncClient(server.target) as client:
        assert [chunk.text async for chunk in client.generate("hello")] == ["caf", "", "é"]
        assert [chunk.text async for chunk in client.chat(HELLO)] == ["caf", "", "é"]
        assert (await client.complete("hello")).token_ids == (7, 8, 9)
        assert (await client.complete_chat(HELLO)).workers == ServedBy("prefill-0", "decode-0")
        assert await client.abort("running") == {"running": True}
        assert await client.tokenize("ab") == (97, 98)
        assert await client.detokenize([97, 98]) == "ab"
        assert [model.name for model in await client.models()] == ["tiny"]


# Errors


@pytest.mark.parametrize("kind", [kind for kind in CODES if kind is not errors.InternalError])
def test_every_error_of_the_servers_table_comes_back_as_itself(
    kind: type[errors.TwinpoolError], client: Client, server: FakeServer
) -> None:
    if kind is errors.InvalidRequest:
        server.inference.error = errors.InvalidRequest("sampling.top_p", "top_p must be in (0, 1]")
    else:
        server.inference.error = kind("in words", retry_after_s=1.5)
    with pytest.raises(kind) as raised:
        client.complete("fail")
    assert type(raised.value) is kind
    assert raised.value.message == server.inference.error.message
    assert raised.value.reason == kind.reason
    assert raised.value.retry_after_s == server.inference.error.retry_after_s
    if isinstance(raised.value, errors.InvalidRequest):
        assert raised.value.field == "sampling.top_p"


async def test_the_asynchronous_client_raises_the_same_errors(server: FakeServer) -> None:
    server.inference.error = errors.QueueFull("queue full", retry_after_s=2.0)
    async with AsyncClient(server.target) as client:
        with pytest.raises(errors.QueueFull, match="queue full") as raised:
            await client.complete("fail")
        assert raised.value.retry_after_s == 2.0
        with pytest.raises(errors.TwinpoolError, match="no details"):
            await client.complete("bare")


def test_a_status_without_details_keeps_its_code_as_the_reason(client: Client) -> None:
    with pytest.raises(errors.TwinpoolError, match="no details") as raised:
        client.complete("bare")
    assert raised.value.reason == "DATA_LOSS"


def test_details_that_cannot_be_read_do_not_hide_the_error(client: Client) -> None:
    with pytest.raises(errors.InternalError, match="broken details"):
        client.complete("broken")


def test_a_stream_without_a_last_chunk_is_an_error(client: Client) -> None:
    with pytest.raises(errors.InternalError, match="without saying why"):
        client.complete("cut")


def test_no_server_is_an_error_of_its_own() -> None:
    # Port 1 is privileged, and nobody listens there.
    with Client("127.0.0.1:1") as client, pytest.raises(ServerUnreachable):
        client.complete("hello")


def test_an_unknown_option_is_a_type_error(client: Client) -> None:
    options: Any = {"temprature": 0}
    with pytest.raises(TypeError, match="temprature"):
        client.generate("x", **options)


# Deadlines and cancelling


def test_a_deadline_ends_the_call_on_both_sides(client: Client, server: FakeServer) -> None:
    stream = client.generate("endless", timeout=2.0)
    next(stream)
    with pytest.raises(errors.DeadlineExceeded):
        next(stream)
    assert server.inference.cancelled.wait(CANCEL_BOUND_S)


def test_the_clients_own_deadline_holds_for_every_call(server: FakeServer) -> None:
    with Client(server.target, timeout=0.3) as client, pytest.raises(errors.DeadlineExceeded):
        list(client.generate("endless"))


def test_breaking_out_of_the_loop_cancels(client: Client, server: FakeServer) -> None:
    for _ in client.generate("endless"):
        break
    assert server.inference.cancelled.wait(CANCEL_BOUND_S)


def test_leaving_the_with_block_cancels_and_ends_the_stream(client: Client, server: FakeServer) -> None:
    with client.generate("endless") as chunks:
        next(chunks)
    assert server.inference.cancelled.wait(CANCEL_BOUND_S)
    assert list(chunks) == []


def test_closing_from_another_thread_ends_the_loop(client: Client, server: FakeServer) -> None:
    stream = client.generate("endless")
    next(stream)
    timer = threading.Timer(0.1, stream.close)
    timer.start()
    assert list(stream) == []
    timer.join()
    assert server.inference.cancelled.wait(CANCEL_BOUND_S)


def test_forgetting_the_stream_cancels(client: Client, server: FakeServer) -> None:
    stream = client.generate("endless")
    next(stream)
    del stream
    gc.collect()
    assert server.inference.cancelled.wait(CANCEL_BOUND_S)


async def cancelled(server: FakeServer) -> bool:
    return await asyncio.to_thread(server.inference.cancelled.wait, CANCEL_BOUND_S)


async def test_breaking_out_of_the_asynchronous_loop_cancels(server: FakeServer) -> None:
    async with AsyncClient(server.target) as client:
        async for _ in client.generate("endless"):
            break
        assert await cancelled(server)


async def test_forgetting_the_asynchronous_stream_cancels(server: FakeServer) -> None:
    async with AsyncClient(server.target) as client:
        stream = client.generate("endless")
        await anext(stream)
        del stream
        await asyncio.to_thread(gc.collect)
        assert await cancelled(server)


def test_a_stream_may_outlive_its_event_loop(server: FakeServer) -> None:
    async def leave() -> AsyncStream[Chunk]:
        client = AsyncClient(server.target)
        stream = client.generate("endless")
        await anext(stream)
        return stream

    stream = asyncio.run(leave())
    del stream
    gc.collect()


async def test_aclose_cancels_and_ends_the_stream(server: FakeServer) -> None:
    async with AsyncClient(server.target) as client:
        stream = client.generate("endless")
        await anext(stream)
        reader = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0)
        await stream.aclose()
        assert await reader is None
        assert [chunk async for chunk in stream] == []
        assert await cancelled(server)


async def test_cancelling_the_reading_task_cancels_the_request(server: FakeServer) -> None:
    async with AsyncClient(server.target) as client:
        reader = asyncio.create_task(client.complete("endless"))
        assert await asyncio.to_thread(server.inference.silent.wait, CANCEL_BOUND_S)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await cancelled(server)


async def test_an_asynchronous_deadline_is_a_typed_error(server: FakeServer) -> None:
    async with AsyncClient(server.target) as client:
        with pytest.raises(errors.DeadlineExceeded):
            await client.complete("endless", timeout=0.3)


# Operations


def test_status_watch_and_checks(server: FakeServer) -> None:
    with OperationsClient(server.target) as client:
        status = client.status()
        assert (status.model, status.serving, status.requests) == ("tiny", True, 5)
        assert (status.workers[0].pool, status.workers[0].state) == ("decode", "ready")
        assert list(client.watch(0.5)) == [status, status]
        assert server.operations.intervals == [0.5]
        (check,) = client.check_pairs()
        assert (check.failed_hop, check.pair, check.timing.queue_s) == (None, status.pairs[0], 0.5)


async def test_asynchronous_status_watch_and_checks(server: FakeServer) -> None:
    async with AsyncOperationsClient(server.target) as client:
        status = await client.status()
        assert [state async for state in client.watch()] == [status, status]
        assert [check.failed_hop async for check in client.check_pairs()] == [None]


def test_a_verification_comes_back_whole(server: FakeServer) -> None:
    with OperationsClient(server.target) as client:
        found = client.verify()
        assert (found.at_rest, found.problems) == (False, ())
        (worker,) = found.workers
        assert (worker.id, worker.pool, worker.answered, worker.blocks_total) == (
            "decode-0",
            "decode",
            True,
            100,
        )
        assert worker.blocks == BlockUsage(free=87, reserved=2, rows=5, cached=4, quarantined=2)
        assert worker.held == (BlockHolding("try-1", "admitted", blocks=5, age_s=1.5),)
        server.operations.verified.workers[0].problems.append("a leak")
        assert client.verify().problems == ("decode-0: a leak",)


async def test_an_asynchronous_verification_is_the_same(server: FakeServer) -> None:
    async with AsyncOperationsClient(server.target) as client:
        assert [worker.id for worker in (await client.verify()).workers] == ["decode-0"]


def test_a_kind_this_client_does_not_know_is_an_error(server: FakeServer) -> None:
    server.operations.status.workers[0].state = 99  # type: ignore[assignment]
    with OperationsClient(server.target) as client, pytest.raises(errors.InternalError, match="decode-0"):
        client.status()
    server.operations.verified.workers[0].pool = 99  # type: ignore[assignment]
    with OperationsClient(server.target) as client, pytest.raises(errors.InternalError, match="decode-0"):
        client.verify()
