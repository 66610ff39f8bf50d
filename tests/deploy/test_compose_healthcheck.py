"""The compose file's check of the router tells a router that serves from one that does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from router.faces.grpc.health import INFERENCE, NOT_SERVING, SERVING
from tests.support.deploy.written_commands import DEPLOY, documents_of
from twinpool.config import ServeConfig

ROUTER = documents_of(DEPLOY / "compose.yaml")[0]["services"]["router"]


class Server:
    """Answers as a router does that serves prompts or not."""

    def __init__(self) -> None:
        self.health = health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(1))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def check(address: str) -> int:
    """The exit code of the check, were the router there."""
    kind, program, option, script = ROUTER["healthcheck"]["test"]
    assert (kind, program, option) == ("CMD", "python", "-c")
    checked = f"127.0.0.1:{ServeConfig().port}"
    assert checked in script
    command = [sys.executable, "-c", script.replace(checked, address)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def test_a_router_that_serves_is_healthy_and_no_other(server: Server) -> None:
    server.health.set("", SERVING)
    server.health.set(INFERENCE, NOT_SERVING)
    assert check(server.address) == 1
    server.health.set(INFERENCE, SERVING)
    assert check(server.address) == 0
    server.stop()
    assert check(server.address) == 1
