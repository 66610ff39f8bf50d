"""A dispatcher, a tokenizer and a pair checker whose every move a test decides."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from router.dispatch.submission import Sink
from router.scheduling.values import Ending, Output, Request
from twinpool.errors import DuplicateRequestId, InvalidRequest, StartFailed, UnknownWorker
from twinpool.session.messages import BlockCounts, HeldStage, Holding, LoadReport
from twinpool.types import (
    FinishReason,
    HandoffId,
    ModelCard,
    Pool,
    ServedBy,
    Timing,
    Token,
    Usage,
    WorkerState,
)
from twinpool.views import Hop, PairCheck, PairView, Snapshot, Verification, VerifiedWorker, WorkerView

BOS, EOS = 256, 257
CARD = ModelCard("bytes", max_context_tokens=4096, vocab_size=258, eos_token_ids=(EOS,), dtype="float32")
TIMING = Timing(queue_s=0.25, prefill_s=0.5, handoff_wait_s=0.125, decode_s=1.0)

PREFILL = WorkerView(
    "prefill-0", Pool.PREFILL, WorkerState.READY, 11, "127.0.0.1", "p-1", 100, LoadReport(2, 3, 60, 0, 1)
)
DECODE = WorkerView(
    "decode-0", Pool.DECODE, WorkerState.READY, 12, "127.0.0.1", "d-1", 200, LoadReport(4, 1, 150, 5, 1, 20)
)
SNAPSHOT = Snapshot(
    model="bytes",
    serving=True,
    queue_requests=7,
    queue_tokens=70,
    num_requests=9,
    workers=(PREFILL, DECODE),
    pairs=(PairView("prefill-0", "decode-0", "shm", ready=True),),
    handoffs_in_flight=2,
    target_workers={Pool.PREFILL: 1, Pool.DECODE: 2},
    most_running={Pool.PREFILL: 8, Pool.DECODE: 64},
)

VERIFIED = Verification(
    at_rest=False,
    workers=(
        VerifiedWorker(
            "decode-0",
            Pool.DECODE,
            "d-1",
            200,
            True,
            BlockCounts(150, 8, 30, 7, 5),
            (Holding(HandoffId("h-1"), HeldStage.WRITING, 8, 0.5),),
            ("it holds h-1, which the scheduler does not know",),
        ),
        VerifiedWorker("prefill-0", Pool.PREFILL, "p-1", 100, False, BlockCounts(), (), ("no answer",)),
    ),
)


class FakeStream:
    """One request's outputs, put in by the test; its submission too. cuts: choice and position of each."""

    def __init__(self, request: Request, sink: Sink) -> None:
        self.request = request
        self.closed = asyncio.Event()
        self.cuts: list[tuple[int, int]] = []
        self._sink = sink
        self._num_tokens = 0

    def put(self, *token_ids: int) -> None:
        """Tokens in one output."""
        self._num_tokens += len(token_ids)
        self._sink.put(Output(0, tuple(map(Token, token_ids))), last=False)

    def end(self, *token_ids: int, reason: FinishReason = FinishReason.LENGTH) -> None:
        """The last output."""
        usage = Usage(len(self.request.prompt_ids), self._num_tokens + len(token_ids))
        ending = Ending(reason, usage, TIMING, ServedBy("prefill-0", "decode-0"))
        self._sink.put(Output(0, tuple(map(Token, token_ids)), ending), last=True)

    def fail(self, error: Exception) -> None:
        """The request's error, after what was put."""
        self._sink.fail(error)  # type: ignore[arg-type] # a bug's, too

    def leave(self) -> None:
        self.closed.set()

    def cut(self, choice_index: int, position: int) -> None:
        self.cuts.append((choice_index, position))


@dataclass
class FakeDispatcher:
    """Also the `Overseer`. on_submit: what a new stream does by itself."""

    on_submit: Callable[[FakeStream], None] = lambda stream: None
    refusal: Exception | None = None
    capacity: int = 1000
    state: Snapshot = SNAPSHOT
    streams: dict[str, FakeStream] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def require_room(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def submit(self, request: Request, sink: Sink) -> FakeStream:
        self.require_room()
        old = self.streams.get(request.request_id)
        if old is not None and not old.closed.is_set():
            raise DuplicateRequestId(f"request {request.request_id!r} is in flight")
        stream = self.streams[request.request_id] = FakeStream(request, sink)
        self.on_submit(stream)
        self.arrived.set()
        return stream

    async def stream(self, request_id: str) -> FakeStream:
        """The stream of a request, once it is there."""
        while request_id not in self.streams:
            self.arrived.clear()
            await self.arrived.wait()
        return self.streams[request_id]

    def abort(self, request_id: str) -> bool:
        stream = self.streams.get(request_id)
        if stream is None or stream.closed.is_set():
            return False
        self.aborted.append(request_id)
        stream.end(reason=FinishReason.ABORT)
        return True

    def max_request_tokens(self) -> int:
        return self.capacity

    def snapshot(self) -> Snapshot:
        return self.state

    async def verify(self) -> Verification:
        return VERIFIED

    def change(self, **fields: object) -> None:
        """Change the snapshot."""
        self.state = replace(self.state, **fields)  # type: ignore[arg-type]


class ByteTokenizer:
    """One token a byte; BOS before a prompt."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(id_ for id_ in token_ids if id_ < BOS).decode(errors="replace") + (
            "" if skip_special_tokens else "<s>" * list(token_ids).count(BOS)
        )

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise InvalidRequest("messages", "the conversation must begin with the user")
        return [BOS, *"".join(f"{turn['role']}:{turn['content']}\n" for turn in messages).encode()]


class ByteDetokenizer:
    """Holds a character back until its last byte is there."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(id_ for id_ in token_ids if id_ < BOS))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class FakePairs:
    """Finds that every pair's hand-off fails. go: unset, a check that is asked for waits."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def check(self, prefill: str, decode: str) -> PairCheck:
        self.asked.set()
        await self.go.wait()
        pair = PairView(prefill, decode, "shm", ready=False)
        return PairCheck(pair, Hop.HANDOFF, "it stopped", Timing(prefill_s=0.5))


class FakePools:
    """Notes what it is told; knows one prefill and two decode workers."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def set_size(self, pool: Pool, size: int) -> int:
        if size == 0:
            raise InvalidRequest("size", "a pool has at least one worker")
        self.told.append((pool, size))
        return len(self.all_of(pool))

    def drain(self, worker_id: str) -> None:
        if worker_id not in self.all_of(Pool.DECODE):
            raise UnknownWorker(f"there is no worker {worker_id!r}")
        self.told.append(worker_id)

    async def renew(self, worker_ids: list[str]) -> AsyncGenerator[tuple[str, str], None]:
        for worker_id in worker_ids:
            if worker_id == "prefill-0":
                raise StartFailed(f"{worker_id} is not ready again")
            self.told.append(worker_id)
            yield worker_id, f"{worker_id}-new"

    def all_of(self, pool: Pool) -> list[str]:
        return ["decode-0", "decode-1"] if pool is Pool.DECODE else ["prefill-0"]
