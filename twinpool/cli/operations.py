"""`twinpool status` and `twinpool doctor`: questions to the operations port of a running server."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.live import Live

from twinpool.cli.exits import Exit, complain
from twinpool.cli.status_table import status_table
from twinpool.cli.verification_table import verification_table
from twinpool.client.operations import DEFAULT_TARGET, OperationsClient
from twinpool.client.status import PairCheck, Status
from twinpool.client.verification import Verification

# Wide enough for every column where there is no terminal to ask.
_WIDTH_WITHOUT_TERMINAL = 160


def status(
    *,
    watch: Annotated[bool, Parameter(negative=())] = False,
    interval: float = 1.0,
    json: Annotated[bool, Parameter(negative=())] = False,
    verify: Annotated[bool, Parameter(negative=())] = False,
    target: str = DEFAULT_TARGET,
) -> int:
    """Show workers, queue and cache; with --verify, who holds which blocks, and exit code 1 if one is lost.

    Parameters
    ----------
    watch
        Go on until Ctrl-C.
    interval
        Seconds between two looks of --watch, at least 0.1.
    json
        Print a JSON object a line instead of a table.
    verify
        Have every worker audit its blocks, and compare what workers hold with what the router knows.
    target
        The server's operations port, as HOST:PORT.
    """
    if verify and watch:
        return complain("--verify looks once: it goes without --watch", Exit.USAGE)
    with OperationsClient(target) as client:
        if verify:
            return _show_verification(client.verify(), json)
        if not watch:
            _show([client.status()], json)
            return Exit.DONE
        with client.watch(interval) as states:
            _show(states, json)
    return Exit.DONE


def doctor(*, target: str = DEFAULT_TARGET) -> int:
    """Drive a canary through every prefill-decode pair, and name each node's CPUs.

    A line for each; exit code 1 if a canary failed.

    Parameters
    ----------
    target
        The server's operations port, as HOST:PORT.
    """
    with OperationsClient(target) as client, client.check_pairs() as checks:
        failed, num_pairs = 0, 0
        for check in checks:
            print(_verdict(check), flush=True)
            num_pairs += 1
            failed += check.failed_hop is not None
        for line in _node_lines(client.status()):
            print(line, flush=True)
    if num_pairs == 0:
        return complain("there is no pair of workers to test; see `twinpool status`", Exit.FAILED)
    return Exit.FAILED if failed else Exit.DONE


def _show_verification(found: Verification, json: bool) -> Exit:
    if json:
        _print_json(found)
    else:
        # A problem stays one line, however long.
        _console().print(verification_table(found), soft_wrap=True)
    if not found.workers:
        return complain("there is no worker to ask; see `twinpool status`", Exit.FAILED)
    return Exit.FAILED if found.problems else Exit.DONE


def _show(states: Iterable[Status], json: bool) -> None:
    console = _console()
    if not json and console.is_terminal:
        _refresh(states, console)
        return
    write: Callable[[Status], None] = (
        _print_json if json else lambda state: console.print(status_table(state, console.width))
    )
    for state in states:
        write(state)


def _refresh(states: Iterable[Status], console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        for state in states:
            live.update(status_table(state, console.width), refresh=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)


def _print_json(state: Status | Verification) -> None:
    print(json_format.dumps(asdict(state)), flush=True)


def _node_lines(state: Status) -> Iterator[str]:
    """Of each node that workers have told of, its CPUs, those they may use, and what they compute with."""
    nodes = {worker.node: worker for worker in state.workers if worker.cpus}
    for node, worker in sorted(nodes.items()):
        computes = f", computes with {worker.kernels}" if worker.kernels else ""
        yield f"node  {node}: {worker.cpus_usable} of {worker.cpus} CPUs usable{computes}"


def _verdict(check: PairCheck) -> str:
    pair = check.pair
    name = f"{pair.prefill} -> {pair.decode} ({pair.transport or 'no transport'})"
    if check.failed_hop is not None:
        return f"FAIL  {name}: {check.failed_hop}: {check.detail}"
    phases = ", ".join(
        f"{phase.removesuffix('_s')} {seconds:.3f} s" for phase, seconds in asdict(check.timing).items()
    )
    return f"ok    {name}: {phases.replace('_', ' ')}"
