"""The session between router and worker over a real socket: order, one router at a time, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from router.dispatch.worker_session import WorkerSession
from tests.support.workers.fake_worker import HELLO, SECRET, WAIT_S, FakeWorker
from twinpool.errors import StartFailed, TakenOver
from twinpool.protocol import SESSION, Versions
from twinpool.sampling.params import SamplingParams
from twinpool.session import server as session_server
from twinpool.session.codec import CONTROL_EVENTS, WORK_COMMANDS, WORK_EVENTS
from twinpool.session.limits import ROUTER_KEY, SECRET_KEY
from twinpool.session.messages import (
    Admit,
    Command,
    Drop,
    Event,
    Granted,
    Hello,
    LeavePair,
    LoadReport,
    PairBroken,
    Refused,
    Released,
    ReleaseReason,
    Reserve,
)
from twinpool.session.server import SessionServer
from twinpool.types import AttemptId, HandoffId
from twinpool.v1 import worker_pb2 as pb
from twinpool.v1 import worker_pb2_grpc as pb_grpc

OLDER = ((SECRET_KEY, SECRET), (ROUTER_KEY, "older"))


class Served:
    """A worker behind a session server."""

    def __init__(self) -> None:
        self.worker = FakeWorker()
        self.server = SessionServer(self.worker, SECRET, "127.0.0.1")
        self.address = f"127.0.0.1:{self.server.start()}"
        self._is_stopped = False

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self.server.stop()


class Router:
    """One session, and what came over it."""

    def __init__(self, address: str) -> None:
        self._session = WorkerSession(address, SECRET)
        self.events: list[Event] = []
        self._arrived = asyncio.Event()
        self._running: asyncio.Task[str] | None = None

    async def open(self) -> Hello:
        hello = await self._session.open(WAIT_S)
        self._running = asyncio.create_task(self._session.run(self._hear))
        return hello

    def send(self, command: Command) -> None:
        self._session.send(command)

    async def wait_for(self, num_events: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.events) < num_events:
                self._arrived.clear()
                await self._arrived.wait()

    async def end(self) -> str:
        """How the session ended by itself."""
        assert self._running is not None
        return await asyncio.wait_for(asyncio.shield(self._running), WAIT_S)

    async def close(self) -> None:
        await self._session.close()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._arrived.set()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.stop()


@pytest.fixture
async def router(served: Served) -> AsyncIterator[Router]:
    router = Router(served.address)
    yield router
    await router.close()


@pytest.fixture
async def another(served: Served) -> AsyncIterator[Router]:
    router = Router(served.address)
    yield router
    await router.close()


def granted(number: int) -> Granted:
    return Granted(HandoffId(f"a{number}"), LoadReport())


async def test_worker_introduces_itself_first_and_keeps_order(served: Served, router: Router) -> None:
    assert await router.open() == HELLO
    for number in range(100):
        served.server.publish(granted(number))
        router.send(Drop(AttemptId(f"a{number}")))
    await router.wait_for(100)
    assert router.events == [granted(number) for number in range(100)]
    await served.worker.wait_for(lambda: len(served.worker.commands) == 100)
    assert served.worker.commands == [Drop(AttemptId(f"a{number}")) for number in range(100)]


async def test_events_without_a_router_are_dropped(served: Served, router: Router) -> None:
    served.server.publish(granted(1))
    await router.open()
    served.server.publish(granted(2))
    await router.wait_for(1)
    assert router.events == [granted(2)]


async def test_closed_session_is_lost_once_and_another_may_follow(
    served: Served, router: Router, another: Router
) -> None:
    await router.open()
    await router.close()
    await served.worker.wait_for(lambda: served.worker.num_lost == 1)
    await another.open()
    served.server.publish(granted(1))
    await another.wait_for(1)
    assert served.worker.num_lost == 1


async def test_newer_session_ends_the_older(served: Served, router: Router, another: Router) -> None:
    await router.open()
    await another.open()
    with pytest.raises(TakenOver):
        await router.end()
    assert served.worker.num_lost == 1
    served.server.publish(granted(1))
    await another.wait_for(1)
    assert router.events == []


async def test_session_ends_for_a_router_that_is_yet_to_come(
    served: Served, router: Router, another: Router
) -> None:
    await router.open()
    assert served.server.seconds_alone() == 0.0
    served.server.make_way()
    with pytest.raises(TakenOver):
        await router.end()
    assert served.server.seconds_alone() > 0.0
    await another.open()
    assert served.server.seconds_alone() == 0.0
    assert served.worker.num_lost == 1


async def test_older_session_that_cannot_end_is_obeyed_no_more(served: Served, another: Router) -> None:
    """A router that reads nothing: its end waits to be written, behind megabytes of events."""
    commands: asyncio.Queue[pb.WorkRequest] = asyncio.Queue()

    async def requests() -> AsyncIterator[pb.WorkRequest]:
        while True:
            yield await commands.get()

    async with grpc.aio.insecure_channel(served.address) as channel, control_of(channel):
        call = pb_grpc.WorkerStub(channel).Work(requests(), metadata=OLDER)
        await commands.put(WORK_COMMANDS.encode(Drop(AttemptId("before"))))
        await served.worker.wait_for(lambda: Drop(AttemptId("before")) in served.worker.commands)
        for _ in range(64):
            served.server.publish(Refused(HandoffId("x" * 1024 * 1024), LoadReport()))
        await another.open()
        await commands.put(WORK_COMMANDS.encode(Drop(AttemptId("after"))))
        # The older session's reader ends with the command that it must not obey.
        another.send(Drop(AttemptId("newer")))
        await served.worker.wait_for(lambda: Drop(AttemptId("newer")) in served.worker.commands)
        call.cancel()
    await another.close()
    await served.worker.wait_for(lambda: served.worker.num_lost == 2)
    assert Drop(AttemptId("after")) not in served.worker.commands


@asynccontextmanager
async def control_of(channel: grpc.aio.Channel) -> AsyncIterator[None]:
    """A router that holds control, and does nothing with it."""
    call = pb_grpc.WorkerStub(channel).Control(metadata=OLDER)
    assert await call.read() is not grpc.aio.EOF
    yield
    call.cancel()


async def refusal_of_work(channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]]) -> grpc.StatusCode:
    call = pb_grpc.WorkerStub(channel).Work(iter(()), metadata=tuple(metadata))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call.read()
    return refusal.value.code()


async def test_work_is_taken_from_the_router_in_control_alone(served: Served, router: Router) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        assert await refusal_of_work(channel, OLDER) is grpc.StatusCode.FAILED_PRECONDITION
        async with control_of(channel):
            pass
        await router.open()
        assert await refusal_of_work(channel, OLDER) is grpc.StatusCode.ABORTED
    served.server.publish(granted(1))
    await router.wait_for(1)
    assert served.worker.num_lost == 0


async def test_a_router_has_its_work_once(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel, control_of(channel):
        first = pb_grpc.WorkerStub(channel).Work(metadata=OLDER)
        await first.write(WORK_COMMANDS.encode(Drop(AttemptId("a"))))
        await served.worker.wait_for(lambda: Drop(AttemptId("a")) in served.worker.commands)
        assert await refusal_of_work(channel, OLDER) is grpc.StatusCode.ALREADY_EXISTS
        assert served.worker.num_lost == 0


async def test_what_came_over_the_work_and_is_still_held_is_lost_with_it(
    served: Served, router: Router
) -> None:
    await router.open()
    kept, released, refused, row, evicted = (HandoffId(f"h{number}") for number in range(5))
    for handoff in (kept, released, refused, row, evicted):
        router.send(Reserve(handoff, (AttemptId(f"of {handoff}"),), 16, "prefill-0-aa", 30.0))
    for handoff in (row, evicted):
        router.send(Admit(AttemptId(f"of {handoff}"), handoff, 0, (1,), (2,), SamplingParams(4)))
    await served.worker.wait_for(lambda: len(served.worker.commands) == 7)
    served.server.publish(Released(released, ReleaseReason.GONE, "", LoadReport()))
    served.server.publish(Refused(refused, LoadReport()))
    served.server.publish(Released(AttemptId(f"of {evicted}"), ReleaseReason.EVICTED, "", LoadReport()))
    await router.wait_for(3)
    await router.close()
    await served.worker.wait_for(lambda: served.worker.num_lost == 1)
    assert served.worker.lost == {kept, f"of {row}"}


async def test_both_streams_carry_what_is_theirs(served: Served, router: Router) -> None:
    await router.open()
    router.send(LeavePair("decode-1"))
    router.send(Drop(AttemptId("a")))
    await served.worker.wait_for(lambda: len(served.worker.commands) == 2)
    broken = PairBroken("decode-1", "as told")
    served.server.publish(broken)
    served.server.publish(granted(1))
    await router.wait_for(2)
    assert set(router.events) == {broken, granted(1)}


@pytest.mark.parametrize("command", [Drop(AttemptId("fail")), LeavePair("fail")])
async def test_command_that_fails_ends_the_session(served: Served, router: Router, command: Command) -> None:
    await router.open()
    router.send(command)
    assert (await router.end()).startswith("session lost")
    await served.worker.wait_for(lambda: served.worker.num_lost == 1)


async def test_unknown_event_ends_the_session_with_a_reason(
    served: Served, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    await router.open()
    served.server.publish(granted(1))
    await router.wait_for(1)
    monkeypatch.setattr(WORK_EVENTS, "encode", lambda event: pb.WorkResponse())
    served.server.publish(granted(2))
    assert (await router.end()).startswith("session given up: unknown event")
    assert router.events == [granted(1)]


async def test_unknown_introduction_is_none(
    served: Served, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONTROL_EVENTS, "encode", lambda event: pb.ControlResponse())
    with pytest.raises(StartFailed, match="did not introduce itself"):
        await router.open()


@pytest.mark.parametrize("versions", [Versions(), Versions(SESSION.newest + 1, SESSION.newest + 2)])
async def test_a_worker_of_other_versions_is_not_used(
    served: Served, router: Router, versions: Versions
) -> None:
    served.worker.introduction = replace(HELLO, versions=versions)
    with pytest.raises(StartFailed, match=f"the worker speaks session protocol {versions}, the router 1"):
        await router.open()


@pytest.mark.parametrize("method", ["Control", "Work"])
@pytest.mark.parametrize("shown", ["guessed", "", None])
async def test_wrong_secret_is_unauthenticated_and_disturbs_nobody(
    served: Served, router: Router, shown: str | None, method: str
) -> None:
    await router.open()
    metadata = () if shown is None else ((SECRET_KEY, shown),)
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = getattr(pb_grpc.WorkerStub(channel), method)(iter(()), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert served.worker.num_lost == 0
    served.server.publish(granted(1))
    await router.wait_for(1)


async def test_failed_worker_ends_the_session_and_opens_none_any_more(
    served: Served, router: Router, another: Router
) -> None:
    await router.open()
    served.server.publish(granted(1))
    served.server.fail("its engine thread failed")
    assert await router.end() == "session ended"
    assert router.events == [granted(1)]
    with pytest.raises(StartFailed, match="its engine thread failed"):
        await another.open()


async def test_stop_ends_the_session_after_what_was_published_and_needs_no_grace(
    served: Served, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_server, "STOP_GRACE_S", 1000.0)
    await router.open()
    served.server.publish(granted(1))
    await asyncio.to_thread(served.stop)  # raises TimeoutError long before the grace is over
    assert await router.end() == "session ended"
    assert router.events == [granted(1)]
    assert served.worker.num_lost == 1
    served.server.publish(granted(2))  # from a thread that is late


def test_server_that_was_never_started_stops() -> None:
    SessionServer(FakeWorker(), SECRET, "127.0.0.1").stop()


def test_a_session_that_does_not_end_leaves_no_thread_and_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()

    async def hang(server: SessionServer) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(session_server, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(SessionServer, "_stop", hang)
    served = SessionServer(FakeWorker(), SECRET, "127.0.0.1")
    monkeypatch.setattr(served, "_server", None)
    served._thread.start()
    served.stop()
    assert not served._thread.is_alive()
    assert cancelled.is_set()
