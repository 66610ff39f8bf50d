"""`twinpool scale`, `drain` and `restart`: changes of a running server's pools, and how far they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from twinpool.cli.exits import Exit, complain
from twinpool.client.operations import DEFAULT_TARGET, OperationsClient
from twinpool.client.status import Status
from twinpool.config import ConfigError
from twinpool.types import Pool, WorkerState

WATCH_INTERVAL_S = 0.5
WAIT_S = 600.0


def scale(
    *sizes: Annotated[str, Parameter(help="POOL=NUMBER, such as prefill=2 decode=3.")],
    wait: bool = True,
    timeout: float = WAIT_S,
    target: str = DEFAULT_TARGET,
) -> int:
    """Change how many workers the pools have, under load; no request fails by it.

    Parameters
    ----------
    wait
        Return once all is as wanted.
    timeout
        Seconds to wait at most.
    target
        The server's operations port, as HOST:PORT.
    """
    wanted = dict(_size(each) for each in sizes)
    if not wanted:
        raise ConfigError("name a pool and its size, such as decode=3")
    with OperationsClient(target) as client:
        for pool, size in wanted.items():
            print(f"{pool}: {client.set_pool_size(pool, size)} -> {size}", flush=True)
        if not wait:
            return Exit.DONE
        return _wait(client, lambda status: _unlike(status, wanted), timeout)


def drain(worker: str, /, *, wait: bool = True, timeout: float = WAIT_S, target: str = DEFAULT_TARGET) -> int:
    """Have one worker finish or hand over what it has, and leave; its pool is smaller by one then.

    Parameters
    ----------
    worker
        Its id, such as decode-1; see `twinpool status`.
    wait
        Return once it is gone.
    timeout
        Seconds to wait at most.
    target
        The server's operations port, as HOST:PORT.
    """
    with OperationsClient(target) as client:
        client.drain_worker(worker)
        if not wait:
            return Exit.DONE
        code = _wait(
            client,
            lambda status: [each.state for each in status.workers if each.id == worker],
            timeout,
        )
    if code == Exit.DONE:
        print(f"{worker} has left")
    return code


def restart(which: str, /, *, timeout: float = WAIT_S, target: str = DEFAULT_TARGET) -> int:
    """Drain, end and start anew one worker, or a pool's one by one. Ctrl-C stops after the present one.

    Parameters
    ----------
    which
        A worker's id, such as decode-1, or a pool: prefill or decode.
    timeout
        Seconds to wait at most, over all workers.
    target
        The server's operations port, as HOST:PORT.
    """
    pools = {pool.value: pool for pool in Pool}
    with OperationsClient(target) as client, client.restart(pools.get(which, which), timeout=timeout) as done:
        for worker_id, incarnation in done:
            print(f"{worker_id} is ready again as {incarnation}", flush=True)
    return Exit.DONE


def _size(text: str) -> tuple[Pool, int]:
    name, _, number = text.partition("=")
    if name not in tuple(Pool) or not number.isdecimal():
        raise ConfigError(f"{text!r} is not POOL=NUMBER, such as prefill=2 or decode=3")
    return Pool(name), int(number)


def _unlike(status: Status, wanted: dict[Pool, int]) -> list[str]:
    """What is not yet as wanted, in words."""
    missing = []
    for pool, size in wanted.items():
        workers = status.pool(pool)
        states = [worker.state for worker in workers]
        if len(workers) != size or any(state is not WorkerState.READY for state in states):
            counts = {state: states.count(state) for state in dict.fromkeys(states)}
            words = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in counts.items())
            missing.append(f"{pool}: {words} of {size}")
            missing += [f"{worker.id}: {worker.reason}" for worker in workers if worker.reason]
    return missing


def _wait(client: OperationsClient, missing: Callable[[Status], list[str]], timeout_s: float) -> int:
    """Until nothing is missing; what is, is told on stderr whenever it changes."""
    deadline, told = time.monotonic() + timeout_s, ""
    with client.watch(WATCH_INTERVAL_S) as states:
        for state in states:
            words = "; ".join(missing(state))
            if not words:
                return Exit.DONE
            if words != told:
                print(words, file=sys.stderr, flush=True)
                told = words
            if time.monotonic() > deadline:
                break
    return complain(f"not done within {timeout_s:g} s: {told}", Exit.OUT_OF_TIME)
