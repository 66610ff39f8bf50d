"""What clients must not be able to do to one another: bad input, many streams, and reading too slowly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from router.entrance.answer_text import AnswerText
from router.entrance.chunk_stream import ChunkStream
from router.scheduling.commands import SchedulerSaid
from router.scheduling.events import Arrived, SchedulerEvent
from tests.support.models.reference import ReferenceCase, reference_case, reference_cases
from tests.support.router.shell import SMALL_WINDOWS, detail, fields_of, reason_of
from tests.support.system.patience import PATIENT_S
from tests.support.system.running import RunningSystem, StartSystem, quiesce
from twinpool.config import EngineConfig, RouterConfig
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1.inference_pb2_grpc import InferenceStub
from twinpool.v1.sampling_pb2 import SamplingParams

Code = grpc.StatusCode
CONTEXT, VOCABULARY = 8192, 49152
PATIENCE_S = 90.0
NUM_NEIGHBOURS = 16
NUM_STREAMS = 300
LONG_ID = "slow reader".ljust(128, "-")
"""Stands in every message of its stream, so that 114 of them fill the client's window."""


@pytest.fixture(scope="module")
def one_system(start_system: StartSystem) -> RunningSystem:
    """Its pools hold the whole context, so that the context is the limit."""
    return start_system(
        engine=EngineConfig(dtype="float32", kv_memory_mib=400),
        router=RouterConfig(grace_s=2.0, stuck_after_s=PATIENT_S, slow_reader_s=10.0),
    )


@pytest.fixture
def system(one_system: RunningSystem) -> Iterator[RunningSystem]:
    """The same, and at rest again after the test."""
    yield one_system
    quiesce(one_system)


@contextmanager
def channel_to(system: RunningSystem, *options: tuple[str, int]) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(str(system.system.inference), options) as channel:
        yield channel


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Bad input.


def ids(*numbers: int, times: int = 1, **sampling: float) -> bytes:
    """A request of these token ids, as it is sent."""
    prompt, params = pb.TokenIds(ids=numbers * times), SamplingParams(**sampling)  # type: ignore[arg-type]
    return pb.GenerateRequest(token_ids=prompt, sampling=params).SerializeToString()


BAD: dict[str, tuple[bytes, str, str]] = {
    "no prompt": (b"", "prompt", "required"),
    "empty text": (pb.GenerateRequest(text="").SerializeToString(), "text", "not be empty"),
    "empty ids": (ids(), "token_ids.ids", "not be empty"),
    "id negative": (ids(1, -1), "token_ids.ids[1]", f"0..{VOCABULARY - 1}"),
    "id beyond the vocabulary": (ids(VOCABULARY), "token_ids.ids[0]", f"0..{VOCABULARY - 1}"),
    "max_tokens 0": (ids(1, max_tokens=0), "sampling.max_tokens", "at least 1"),
    "max_tokens negative": (ids(1, max_tokens=-1), "sampling.max_tokens", "at least 1"),
    "prompt over the context": (ids(1, times=CONTEXT), "token_ids.ids", str(CONTEXT - 1)),
    "answer over the context": (
        ids(1, times=8000, max_tokens=193),
        "sampling.max_tokens",
        "is 192 (the context",
    ),
    "temperature NaN": (ids(1, temperature=float("nan")), "sampling.temperature", "0..100"),
    "temperature negative": (ids(1, temperature=-0.5), "sampling.temperature", "0..100"),
    "top_p 0": (ids(1, top_p=0.0), "sampling.top_p", "(0, 1]"),
    "top_p over 1": (ids(1, top_p=1.5), "sampling.top_p", "(0, 1]"),
    "min_p over 1": (ids(1, min_p=1.5), "sampling.min_p", "0..1"),
    "5 MB of text": (
        pb.GenerateRequest(text="x" * 5_000_000).SerializeToString(),
        "text",
        str(CONTEXT * 128),
    ),
    "5 MB of ids": (ids(40_000, times=1_700_000), "token_ids.ids", f"limit is {CONTEXT}"),
}
NOT_UTF_8 = b"\x1a\x02\xff\xfe"
ONE_MB = (("large", "x" * 2**20),)


def refusal(channel: grpc.Channel, raw: bytes, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
    """The error of a call with these bytes. Any: the readers of errors that tests share take grpc.aio's."""
    generate: Any = channel.unary_stream("/twinpool.v1.Inference/Generate")
    with pytest.raises(grpc.RpcError) as caught:
        list(generate(raw, timeout=PATIENCE_S, metadata=metadata))
    return caught.value


def throw_everything_bad(channel: grpc.Channel) -> None:
    for name, (raw, field, limit) in BAD.items():
        error = refusal(channel, raw)
        assert (error.code(), fields_of(error)) == (Code.INVALID_ARGUMENT, [field]), name
        assert limit in error.details(), name
    malformed = refusal(channel, NOT_UTF_8)
    assert (malformed.code(), reason_of(malformed)) == (Code.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert refusal(channel, ids(1), ONE_MB).code() is Code.RESOURCE_EXHAUSTED


def arrivals(system: RunningSystem) -> list[str]:
    """A list that grows with the id of each request that reaches the scheduler."""
    scheduler, seen = system.system.dispatcher.scheduler, list[str]()
    handle = scheduler.handle

    def handle_and_note(event: SchedulerEvent, now: float) -> list[SchedulerSaid]:
        if isinstance(event, Arrived) and not event.request.is_canary:
            seen.append(event.request.request_id)
        return handle(event, now)

    scheduler.handle = handle_and_note  # type: ignore[method-assign]
    return seen


@pytest.mark.timeout(300)
def test_bad_input_is_refused_before_any_prefill_and_its_neighbours_stay_exact(system: RunningSystem) -> None:
    cases = [case for case in reference_cases() if 20 <= len(case.prompt_ids) <= 130][:NUM_NEIGHBOURS]
    assert len(cases) == NUM_NEIGHBOURS
    seen = arrivals(system)
    all_run, thrown = threading.Barrier(NUM_NEIGHBOURS + 1), threading.Event()

    def neighbour(case: ReferenceCase) -> list[int]:
        """Reads on until everything bad has been thrown, and the known tokens are there."""
        tokens: list[int] = []
        with system.client.generate(
            case.prompt_ids, max_tokens=2000, temperature=0.0, ignore_eos=True, request_id=case.name
        ) as chunks:
            tokens += next(chunks).token_ids
            all_run.wait(PATIENCE_S)
            for chunk in chunks:
                tokens += chunk.token_ids
                if thrown.is_set() and len(tokens) >= len(case.output_ids):
                    break
        return tokens[: len(case.output_ids)]

    with ThreadPoolExecutor(NUM_NEIGHBOURS) as threads, channel_to(system) as channel:
        answers = [threads.submit(neighbour, case) for case in cases]
        try:
            all_run.wait(PATIENCE_S)
            throw_everything_bad(channel)
            assert len(system.system.dispatcher.scheduler.requests) == NUM_NEIGHBOURS
        finally:
            thrown.set()
        assert [answer.result(PATIENCE_S) for answer in answers] == [list(case.output_ids) for case in cases]
    assert sorted(seen) == sorted(case.name for case in cases)


# Streams.


@pytest.mark.timeout(300)
def test_more_streams_than_any_pool_of_threads_leave_health_its_answer(system: RunningSystem) -> None:
    streams = [
        system.client.generate([number + 1] * 10, max_tokens=1000, ignore_eos=True)
        for number in range(NUM_STREAMS)
    ]
    wait_until(lambda: system.operations.status().requests == NUM_STREAMS)
    with channel_to(system) as channel:
        health: Any = HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="twinpool.v1.Inference")
        answer = health.Check(asked, timeout=20.0)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert system.operations.status().requests == NUM_STREAMS
    for stream in streams:
        stream.close()


# Readers.


class Kept:
    """Tokens that wait because a write to the slow reader is blocked."""

    def __init__(self, system: RunningSystem) -> None:
        self._sinks = system.system.dispatcher._sinks
        self._stream: ChunkStream | None = None

    def num_tokens(self) -> int:
        # The dispatcher forgets a sink with its last token, which still waits to be written.
        sink = self._sinks.get(LONG_ID)
        if isinstance(sink, AnswerText):
            self._stream = sink._stream
        waiting = self._stream._waiting.get(0) if self._stream is not None else None
        return len(waiting.tokens) if waiting is not None else 0


def begin_reading_slowly(channel: grpc.Channel, system: RunningSystem, max_tokens: int) -> Any:
    """A stream that nobody reads, once its client's window is full."""
    prompt = pb.TokenIds(ids=reference_case("plain").prompt_ids)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    request = pb.GenerateRequest(request_id=LONG_ID, token_ids=prompt, sampling=sampling)
    kept = Kept(system)
    call = InferenceStub(channel).Generate(request, timeout=3 * PATIENCE_S)
    wait_until(lambda: system.call(kept.num_tokens) >= 8)
    return call


@pytest.mark.timeout(300)
def test_reader_that_pauses_gets_what_was_kept_back_in_one_chunk(system: RunningSystem) -> None:
    with channel_to(system, *SMALL_WINDOWS) as channel:
        chunks = [message.chunk for message in begin_reading_slowly(channel, system, max_tokens=250)]
    assert max(len(chunk.token_ids) for chunk in chunks) >= 8
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    expected = reference_case("plain").output_ids
    assert (len(tokens), tuple(tokens[: len(expected)])) == (250, expected)


def ask_for_eight(system: RunningSystem, case: ReferenceCase) -> tuple[int, ...]:
    answer = system.client.complete(case.prompt_ids, max_tokens=8, temperature=0.0, ignore_eos=True)
    return answer.token_ids


@pytest.mark.timeout(300)
def test_reader_that_stops_is_cut_off_while_its_neighbours_keep_their_pace(system: RunningSystem) -> None:
    cases = [case for case in reference_cases() if 20 <= len(case.prompt_ids) <= 50][:2]
    scheduler = system.system.dispatcher.scheduler
    with channel_to(system, *SMALL_WINDOWS) as channel:
        call = begin_reading_slowly(channel, system, max_tokens=7000)
        with ThreadPoolExecutor(len(cases)) as threads:
            answers = list(threads.map(ask_for_eight, [system] * len(cases), cases))
        assert answers == [case.output_ids[:8] for case in cases]
        assert LONG_ID in scheduler.requests
        wait_until(lambda: LONG_ID not in scheduler.requests)
        messages = list[pb.GenerateResponse]()
        with pytest.raises(grpc.RpcError) as caught:
            messages.extend(call)  # keeps what came before the error
    error: Any = caught.value
    assert (error.code(), reason_of(error)) == (Code.RESOURCE_EXHAUSTED, "SLOW_READER")
    assert detail(error, error_details_pb2.RetryInfo) is None
    assert 0 < sum(message.ByteSize() for message in messages) < 2**18
