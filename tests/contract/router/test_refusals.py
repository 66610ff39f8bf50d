"""Every way a call is refused or fails: its code, its details, and that nothing was submitted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from router.entrance.request_limits import MAX_BYTES_PER_TOKEN
from tests.support.router.fakes import CARD, ByteTokenizer, FakeStream
from tests.support.router.shell import (
    Shell,
    detail,
    failure_of,
    fields_of,
    reason_of,
    rich_status,
    running_shell,
    token_prompt,
)
from twinpool import errors
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import operations_pb2 as ops_pb
from twinpool.v1.sampling_pb2 import SamplingParams as Sampling

Code = grpc.StatusCode

BAD_REQUESTS = {
    "no prompt": (pb.GenerateRequest(), "prompt"),
    "empty text": (pb.GenerateRequest(text=""), "text"),
    "empty ids": (token_prompt(()), "token_ids.ids"),
    "negative id": (token_prompt((1, -1)), "token_ids.ids[1]"),
    "id beyond the vocabulary": (token_prompt((258,)), "token_ids.ids[0]"),
    "prompt fills the pools": (token_prompt([1] * 1000), "token_ids.ids"),
    "request id too long": (token_prompt(request_id="é" * 65), "request_id"),
    "request id with a newline": (token_prompt(request_id="a\nb"), "request_id"),
}
BAD_SAMPLING = {
    "max_tokens 0": (Sampling(max_tokens=0), "max_tokens"),
    "max_tokens negative": (Sampling(max_tokens=-(2**31)), "max_tokens"),
    "max_tokens over the pools": (Sampling(max_tokens=998), "max_tokens"),
    "max_tokens over the context": (Sampling(max_tokens=2**31 - 1), "max_tokens"),
    "temperature NaN": (Sampling(temperature=float("nan")), "temperature"),
    "temperature infinite": (Sampling(temperature=float("inf")), "temperature"),
    "temperature negative": (Sampling(temperature=-0.1), "temperature"),
    "temperature too high": (Sampling(temperature=100.1), "temperature"),
    "top_p 0": (Sampling(top_p=0), "top_p"),
    "top_p over 1": (Sampling(top_p=1.01), "top_p"),
    "top_p NaN": (Sampling(top_p=float("nan")), "top_p"),
    "top_k negative": (Sampling(top_k=-1), "top_k"),
}


async def assert_refused(shell: Shell, request: pb.GenerateRequest, field: str) -> None:
    error = await failure_of(shell.inference.Generate(request))
    assert (error.code(), reason_of(error), fields_of(error)) == (
        Code.INVALID_ARGUMENT,
        "INVALID_REQUEST",
        [field],
    )
    assert field in (error.details() or "")
    assert shell.count("admission_rejections_total", reason="invalid_request") == 1
    assert not shell.dispatcher.streams


@pytest.mark.parametrize(("request_", "field"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
async def test_a_bad_request_names_its_field(shell: Shell, request_: pb.GenerateRequest, field: str) -> None:
    await assert_refused(shell, request_, field)


@pytest.mark.parametrize(("sampling", "field"), BAD_SAMPLING.values(), ids=BAD_SAMPLING)
async def test_bad_sampling_names_its_field(shell: Shell, sampling: Sampling, field: str) -> None:
    request = token_prompt()
    request.sampling.CopyFrom(sampling)
    await assert_refused(shell, request, f"sampling.{field}")


@pytest.mark.parametrize(
    ("capacity", "limit"),
    [(1000, "999 (the workers' cache holds 1000"), (10**6, "4095 (the context holds 4096")],
)
async def test_a_prompt_that_fills_either_limit_is_told_which(
    shell: Shell, capacity: int, limit: str
) -> None:
    shell.dispatcher.capacity = capacity
    error = await failure_of(shell.inference.Generate(token_prompt([1] * min(capacity, 4096))))
    assert error.code() is Code.INVALID_ARGUMENT
    assert limit in (error.details() or "")


async def test_a_prompt_of_five_megabytes_is_refused_with_the_limit(shell: Shell) -> None:
    error = await failure_of(shell.inference.Generate(pb.GenerateRequest(text="x" * 5_000_000)))
    assert error.code() is Code.INVALID_ARGUMENT
    assert str(CARD.max_context_tokens * MAX_BYTES_PER_TOKEN) in (error.details() or "")


async def test_a_message_over_the_transports_limit_is_refused_by_it(shell: Shell) -> None:
    error = await failure_of(shell.inference.Generate(pb.GenerateRequest(text="x" * (16 * 2**20))))
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert not rich_status(error).details


@pytest.mark.parametrize(
    "raw", [b"\xff\xff", b"\x1a\x05ab", b"\x1a\x02\xff\xfe"], ids=["garbage", "cut short", "not UTF-8"]
)
async def test_bytes_that_do_not_parse_are_the_clients_fault(shell: Shell, raw: bytes) -> None:
    generate: Any = shell.channel.unary_stream("/twinpool.v1.Inference/Generate")
    tokenize: Any = shell.channel.unary_unary("/twinpool.v1.Inference/Tokenize")
    error = await failure_of(generate(raw))
    assert (error.code(), reason_of(error)) == (Code.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert "twinpool.v1" not in (error.details() or "")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tokenize(b"\xff")
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert shell.count("requests_total", method="Generate", code="INVALID_ARGUMENT") == 1
    assert shell.count("requests_total", method="Tokenize", code="INVALID_ARGUMENT") == 1


async def test_a_conversation_is_checked(shell: Shell) -> None:
    empty = await failure_of(shell.inference.Chat(pb.ChatRequest()))
    assert fields_of(empty) == ["messages"]
    turns = [pb.ChatMessage(role="user", content="a"), pb.ChatMessage(role="robot" * 9999, content="b")]
    role = await failure_of(shell.inference.Chat(pb.ChatRequest(messages=turns)))
    assert fields_of(role) == ["messages[1].role"]
    large = [pb.ChatMessage(role="user", content="x" * 300_000)] * 2
    assert fields_of(await failure_of(shell.inference.Chat(pb.ChatRequest(messages=large)))) == ["messages"]


async def test_millions_of_entries_are_refused_by_their_number(shell: Shell) -> None:
    ids = pb.TokenIds(ids=[1] * 3_000_000)
    turns = [pb.ChatMessage()] * 500_000
    generate = shell.inference.Generate(pb.GenerateRequest(token_ids=ids))
    assert "3000000 entries; the limit is 4096" in ((await failure_of(generate)).details() or "")
    chat = shell.inference.Chat(pb.ChatRequest(messages=turns))
    assert "500000 entries; the limit is 4096" in ((await failure_of(chat)).details() or "")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await shell.inference.Detokenize(pb.DetokenizeRequest(token_ids=ids.ids))
    assert fields_of(caught.value) == ["token_ids"]


async def test_a_template_that_refuses_a_conversation_refuses_the_request(shell: Shell) -> None:
    turns = [pb.ChatMessage(role="assistant", content="hello")]
    error = await failure_of(shell.inference.Chat(pb.ChatRequest(messages=turns)))
    assert (error.code(), fields_of(error)) == (Code.INVALID_ARGUMENT, ["messages"])


async def test_an_unknown_model_is_not_found_by_any_method(shell: Shell) -> None:
    request = token_prompt()
    request.model = "other"
    error = await failure_of(shell.inference.Generate(request))
    assert (error.code(), reason_of(error)) == (Code.NOT_FOUND, "MODEL_NOT_FOUND")
    for call in (
        shell.inference.Tokenize(pb.TokenizeRequest(model="other")),
        shell.inference.Detokenize(pb.DetokenizeRequest(model="other")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is Code.NOT_FOUND


async def test_ids_to_write_out_and_ids_to_abort_are_checked(shell: Shell) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await shell.inference.Detokenize(pb.DetokenizeRequest(token_ids=[1, 300]))
    assert fields_of(caught.value) == ["token_ids[1]"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await shell.inference.Abort(pb.AbortRequest(request_ids=["x"] * 1001))
    assert fields_of(caught.value) == ["request_ids"]


@pytest.mark.parametrize("wrong", ["", "x" * 129, "x" * 1_000_000, "a\nb"], ids=len)
async def test_an_id_that_no_request_can_have_is_not_aborted(shell: Shell, wrong: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await shell.inference.Abort(pb.AbortRequest(request_ids=["fine", wrong]))
    assert (caught.value.code(), fields_of(caught.value)) == (Code.INVALID_ARGUMENT, ["request_ids[1]"])
    assert len(caught.value.details() or "") < 256


@pytest.mark.parametrize("interval_s", [0.0, -1.0, 0.09, float("nan"), float("inf")])
async def test_an_interval_that_cannot_be_is_refused(shell: Shell, interval_s: float) -> None:
    call = shell.operations.WatchStatus(ops_pb.WatchStatusRequest(interval_s=interval_s))
    assert fields_of(await failure_of(call)) == ["interval_s"]


async def test_a_full_queue_says_when_to_come_back_both_ways(shell: Shell) -> None:
    shell.dispatcher.refusal = errors.QueueFull("1024 requests wait; the limit is 1024", retry_after_s=1.5)
    error = await failure_of(shell.inference.Generate(token_prompt()))
    assert (error.code(), reason_of(error)) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    retry = detail(error, error_details_pb2.RetryInfo)
    assert retry is not None
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1500"
    assert shell.count("admission_rejections_total", reason="queue_full") == 1


class CountingTokenizer(ByteTokenizer):
    """Counts the texts that it is given."""

    def __init__(self) -> None:
        self.num_texts = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.num_texts += 1
        return super().encode(text, add_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        self.num_texts += 1
        return super().apply_chat_template(messages)


async def test_a_full_queue_has_no_text_tokenized_in_vain() -> None:
    tokenizer = CountingTokenizer()
    async with running_shell(tokenizer=tokenizer) as shell:
        shell.dispatcher.refusal = errors.QueueFull("1024 requests wait", retry_after_s=1.5)
        chat = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="hello")])
        calls = (shell.inference.Generate(pb.GenerateRequest(text="hello")), shell.inference.Chat(chat))
        assert [reason_of(await failure_of(call)) for call in calls] == ["QUEUE_FULL"] * 2
        assert tokenizer.num_texts == 0
        shell.dispatcher.refusal = None
        shell.dispatcher.on_submit = lambda stream: stream.end(65)
        assert len([message async for message in shell.inference.Chat(chat)]) == 1
        assert tokenizer.num_texts == 1


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (errors.PoolUnavailable("the decode pool has no worker", retry_after_s=5), Code.UNAVAILABLE),
        (errors.ServerDraining("the server is stopping", retry_after_s=1), Code.UNAVAILABLE),
        (errors.WorkerLost("prefill-0 is lost"), Code.UNAVAILABLE),
        (errors.RequestCancelled("the client ended the request"), Code.CANCELLED),
        (errors.DeadlineExceeded("time ran out in the queue"), Code.DEADLINE_EXCEEDED),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_typed_error_keeps_its_message_reason_and_hint(
    shell: Shell, refusal: errors.TwinpoolError, code: Code
) -> None:
    shell.dispatcher.on_submit = lambda stream: stream.fail(refusal)
    error = await failure_of(shell.inference.Generate(token_prompt()))
    assert (error.code(), error.details()) == (code, refusal.message)
    assert reason_of(error) == refusal.reason
    assert rich_status(error).message == refusal.message
    assert (detail(error, error_details_pb2.RetryInfo) is not None) == (refusal.retry_after_s is not None)


async def test_a_request_id_in_flight_is_taken_until_its_end(shell: Shell) -> None:
    first = shell.inference.Generate(token_prompt())
    stream = await shell.dispatcher.stream("r")
    error = await failure_of(shell.inference.Generate(token_prompt()))
    assert (error.code(), reason_of(error)) == (Code.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    stream.end(65)
    assert len([message async for message in first]) == 1
    shell.dispatcher.on_submit = lambda stream: stream.end(66)
    assert len([message async for message in shell.inference.Generate(token_prompt())]) == 1


QUOTED = "the secret words of a prompt"


def breaks(stream: FakeStream) -> None:
    """As a library might that quotes what it was given."""
    try:
        raise KeyError(QUOTED)
    except KeyError as error:
        raise AssertionError(QUOTED) from error


async def test_a_bug_is_opaque_to_the_client_and_told_in_the_log_without_what_it_may_quote(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    shell.dispatcher.on_submit = breaks
    with caplog.at_level(logging.ERROR):
        error = await failure_of(shell.inference.Generate(token_prompt()))
    assert (error.code(), reason_of(error)) == (Code.INTERNAL, "INTERNAL")
    assert "secret" not in repr(error) + repr(rich_status(error))
    info = detail(error, error_details_pb2.ErrorInfo)
    assert info is not None
    assert info.metadata["log_id"] in caplog.text
    for told in ("builtins.KeyError", "builtins.AssertionError", "in breaks", "Generate failed"):
        assert told in caplog.text
    assert QUOTED not in caplog.text
    assert shell.count("requests_total", method="Generate", code="INTERNAL") == 1


async def test_a_request_that_engines_fail_on_is_told_of_in_the_log_alone_and_is_not_to_be_sent_again(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    fault = "attempt 7 made an engine fail, alone: prefill worker p0: failed_alone: IndexError"
    shell.dispatcher.on_submit = lambda stream: stream.fail(errors.InternalError(fault))
    with caplog.at_level(logging.ERROR):
        error = await failure_of(shell.inference.Generate(token_prompt()))
    assert (error.code(), reason_of(error)) == (Code.INTERNAL, "INTERNAL")
    assert detail(error, error_details_pb2.RetryInfo) is None
    assert "IndexError" not in repr(error) + repr(rich_status(error))
    assert fault in caplog.text


async def test_tokens_sent_before_a_failure_arrive_before_it(shell: Shell) -> None:
    def play(stream: FakeStream) -> None:
        stream.put(65)
        stream.fail(errors.WorkerLost("decode-0 is lost"))

    shell.dispatcher.on_submit = play
    messages = aiter(shell.inference.Generate(token_prompt()))
    assert (await anext(messages)).chunk.text == "A"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(messages)
    assert caught.value.code() is Code.UNAVAILABLE


async def test_an_unknown_method_is_unimplemented(shell: Shell) -> None:
    nope: Any = shell.channel.unary_unary("/twinpool.v1.Inference/Nope")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await nope(b"")
    assert caught.value.code() is Code.UNIMPLEMENTED
