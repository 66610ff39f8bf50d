"""Who holds which blocks agrees with what the router knows: under load, whatever ends, and at rest."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.system.patience import impatient
from tests.support.system.running import READY_S, RunningSystem, wait_until_ready
from twinpool.cli.app import main
from twinpool.client.verification import Verification
from twinpool.types import Pool

PROMPT = "The capital of France is"
NUM_CLIENTS = 6
NUM_REQUESTS = 5
"""Of each client."""


def ask(system: RunningSystem, client: int) -> None:
    """Answers that are read to the end, left in the middle, or made by a prefill worker alone."""
    for number in range(NUM_REQUESTS):
        prompt = [1 + client] * (10 + 60 * number)
        max_tokens = 1 if (client + number) % 5 == 0 else 16
        stream = system.client.generate(prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        if (client + number) % 3 == 0:
            next(stream)
            stream.close()
        else:
            assert sum(len(chunk.token_ids) for chunk in stream) == max_tokens


def verified_until(system: RunningSystem, done: threading.Event) -> Iterator[Verification]:
    """One verification after the other, at least one."""
    yield system.operations.verify()
    while not done.is_set():
        yield system.operations.verify()


def wait_until_replaced(system: RunningSystem, pid: int) -> None:
    """Until no worker has this process any more."""
    deadline = time.monotonic() + READY_S
    while any(worker.pid == pid for worker in system.operations.status().workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_under_load_all_blocks_are_accounted_for_at_any_moment(system: RunningSystem) -> None:
    done = threading.Event()
    running = system.client.generate([9] * 10, max_tokens=4000, ignore_eos=True)
    with running, ThreadPoolExecutor(NUM_CLIENTS + 1) as threads:
        for _ in range(2):  # it is a row by then, and stays one for longer than a look takes
            next(running)
        looking = threads.submit(lambda: list(verified_until(system, done)))
        asking = [threads.submit(ask, system, client) for client in range(NUM_CLIENTS)]
        try:
            for each in asking:
                each.result()
        finally:
            done.set()
        found = looking.result()
    assert [each.problems for each in found if each.problems] == []
    held = [(worker.pool, held.stage) for each in found for worker in each.workers for held in worker.held]
    assert ("decode", "admitted") in held


def test_a_worker_that_stands_still_is_named_and_holds_nobody_up(system: RunningSystem) -> None:
    (decode,) = (worker for worker in system.operations.status().workers if worker.pool is Pool.DECODE)
    os.kill(decode.pid, signal.SIGSTOP)
    found = system.operations.verify()
    assert found.problems == ("decode-0: it does not answer: nothing is known of what it holds",)
    assert [worker.id for worker in found.workers if worker.answered] == ["prefill-0"]
    assert not found.at_rest
    with impatient(system):
        wait_until_replaced(system, decode.pid)
    wait_until_ready(system)


def test_at_rest_the_command_says_so_and_ends_well(
    system: RunningSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    system.client.complete(PROMPT, max_tokens=4)
    assert main(["status", "--verify", "--target", str(system.system.operations)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("all blocks accounted for")
    assert [line.split()[:2] for line in lines[-2:]] == [["prefill-0", "ok"], ["decode-0", "ok"]]
