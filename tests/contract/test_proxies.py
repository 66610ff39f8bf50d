"""A proxy in the environment is for other hosts: nothing inside a machine or a cluster goes to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.dispatch.worker_session import WorkerSession
from tests.support.clients.fake_server import FakeServer
from tests.support.workers.fake_worker import HELLO, SECRET, FakeWorker
from twinpool import AsyncClient, Client
from twinpool.channels import is_on_this_machine
from twinpool.errors import TwinpoolError
from twinpool.session.server import SessionServer

WAIT_S = 10.0


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Named by the environment; it takes connections, and answers none."""
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener


def test_clients_call_this_machine_directly(proxy: socket.socket, server: FakeServer) -> None:
    with Client(server.target, timeout=WAIT_S) as client:
        assert client.complete("hello").text


async def test_asynchronous_clients_call_this_machine_directly(
    proxy: socket.socket, server: FakeServer
) -> None:
    async with AsyncClient(server.target, timeout=WAIT_S) as client:
        assert (await client.complete("hello")).text


async def test_the_router_calls_its_workers_directly(proxy: socket.socket) -> None:
    worker = SessionServer(FakeWorker(), SECRET, "127.0.0.1")
    session = WorkerSession(f"127.0.0.1:{worker.start()}", SECRET)
    try:
        assert await session.open(WAIT_S) == HELLO
    finally:
        await session.close()
        worker.stop()


def test_clients_call_other_hosts_through_the_proxy(proxy: socket.socket) -> None:
    with Client("twinpool.test:50051", timeout=WAIT_S) as client, ThreadPoolExecutor() as threads:
        calling = threads.submit(client.complete, "hello")
        connection, _ = proxy.accept()
        with connection:
            assert connection.recv(1024).startswith(b"CONNECT twinpool.test:50051 ")
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        client.close()
        with pytest.raises(TwinpoolError):
            calling.result(WAIT_S)


@pytest.mark.parametrize(
    "target",
    [
        *(
            "localhost:1",
            "LOCALHOST:1",
            "a.localhost:1",
            "127.0.0.1:1",
            "127.8.9.1:1",
            "[::1]:1",
            "0.0.0.0:1",
        ),
        *("localhost", "127.0.0.1", "dns:localhost:1", "dns:///localhost:1", "dns://8.8.8.8/127.0.0.1:1"),
        *("ipv4:127.0.0.1:1", "ipv6:[::1]:1", "unix:/run/twinpool", "unix-abstract:twinpool"),
    ],
)
def test_a_target_on_this_machine(target: str) -> None:
    assert is_on_this_machine(target)


@pytest.mark.parametrize(
    "target",
    [
        "",
        "twinpool.test:1",
        "10.0.0.1:1",
        "[2001:db8::1]:1",
        "dns:///twinpool.test:1",
        "localhost.test:1",
        "[::1",
    ],
)
def test_a_target_elsewhere(target: str) -> None:
    assert not is_on_this_machine(target)
