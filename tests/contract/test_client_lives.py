"""What a client outlives, and what it does not: a server that was away, and a fork."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.support.clients.fake_server import FakeServer
from twinpool import Client
from twinpool.client import ServerUnreachable
from twinpool.client.connections import _CHANNEL_OPTIONS

MOST_BACKOFF_S = 2.0
CANCEL_BOUND_S = 10.0


def test_a_server_that_is_back_is_found_soon_however_long_it_was_away() -> None:
    # What a client waits between two tries grows with the outage up to this bound, so the bound is the proof.
    options = dict(_CHANNEL_OPTIONS)
    assert options["grpc.max_reconnect_backoff_ms"] <= MOST_BACKOFF_S * 1000
    assert options["grpc.min_reconnect_backoff_ms"] <= MOST_BACKOFF_S * 1000


def test_a_client_that_was_used_through_an_outage_works_again() -> None:
    server = subprocess.Popen(_SERVE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    target = server.stdout.readline().strip()
    with Client(target) as client:
        assert client.tokenize("a") == (97,)
        server.kill()
        server.wait()
        with pytest.raises(ServerUnreachable):
            client.tokenize("a")
        with subprocess.Popen([*_SERVE, target], stdout=subprocess.PIPE, text=True) as again:
            assert again.stdout is not None
            assert again.stdout.readline().strip() == target
            until = time.monotonic() + 30
            while True:
                try:
                    assert client.tokenize("a") == (97,)
                    break
                except ServerUnreachable:
                    assert time.monotonic() < until
            again.kill()
    server.stdout.close()


_SERVE = [
    sys.executable,
    "-c",
    """
import sys, threading
from tests.support.clients.fake_server import running_server
with running_server(*sys.argv[1:]) as server:
    print(server.target, flush=True)
    threading.Event().wait()
""",
]


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("client.tokenize('a', timeout=5)", "ClientForked"),
        ("client.complete('hello', timeout=5)", "ClientForked"),
        ("next(stream)", "ClientForked"),
        ("(stream.close(), client.close())", "nothing raised"),
    ],
)
def test_a_forked_child_is_told_to_make_its_own_client(use: str, told: str, server: FakeServer) -> None:
    # In a program of its own: this one has a server's threads, which no fork survives.
    ended = subprocess.run(
        [sys.executable, "-c", _FORKS, server.target, use], capture_output=True, text=True, check=False
    )
    assert (ended.stdout.split("\n"), ended.returncode) == (["child: " + told, "parent: (97,)", ""], 0)
    assert server.inference.cancelled.wait(CANCEL_BOUND_S)


_FORKS = """
import os, sys
from twinpool import Client
target, use = sys.argv[1:]
with Client(target) as client, client.generate("endless") as stream:
    next(stream)
    child = os.fork()
    if child == 0:
        told = "nothing raised"
        try:
            eval(use)
        except Exception as error:
            told = type(error).__name__
        os.write(1, f"child: {told}\\n".encode())
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    # What the child did, or did not, ends nothing of its parent's.
    print("parent:", client.tokenize("a", timeout=5))
"""
