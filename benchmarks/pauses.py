"""How long streams pause when their decode worker is killed, or drains. Run: make pauses

Prints one JSON object: medians over the rounds, and every round. Worth reading only from an idle machine.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
from dataclasses import asdict, dataclass

from benchmarks.served import Readers, Served, prompt_of, served
from twinpool.types import Pool

PROMPT_TOKENS = 128
NUM_TOKENS = 200
BEFORE_TOKENS = 40
"""Tokens that every stream has before anything is done."""
ROUNDS = 5
STREAMS = (1, 4)


@dataclass(frozen=True, slots=True)
class Pause:
    """One round. streams: all that ran. hit: those of the worker that was struck or drained.

    pause_s: the longest gap that it makes. After a kill, of the gap in which it happened and the three after,
    since the start of the next worker on the same cores lengthens later ones. After a drain, of all gaps:
    rows move some steps later, and no worker starts meanwhile. longest_s: of all gaps from then on. step_s:
    the median gap before.
    prefill_s: time to first token of a prompt as long as what a stream had read and written by then, nothing
    else running.
    """

    streams: int
    hit: int
    pause_s: float
    longest_s: float
    step_s: float
    prefill_s: float

    @property
    def in_steps(self) -> float:
        """The pause in decode steps."""
        return self.pause_s / self.step_s


def measure(target: Served, num_streams: int, *, kill: bool, seed: int) -> Pause:
    """Run streams, strike or drain one of two decode workers, and look at the longest gap after it."""
    readers = Readers(
        target.client, [prompt_of(PROMPT_TOKENS, seed + n) for n in range(num_streams)], NUM_TOKENS
    )
    readers.wait_for(BEFORE_TOKENS)
    busy = {worker.id: worker.running for worker in target.operations.status().pool(Pool.DECODE)}
    victim = max(busy, key=lambda worker_id: busy[worker_id])
    counts = [len(reading.times_s) for reading in readers.readings]
    num_gaps = 4 if kill else None
    if kill:
        os.kill(target.pid_of(victim), signal.SIGKILL)
    else:
        target.operations.drain_worker(victim)
    after = [
        (reading, count)
        for reading, count in zip(readers.finish(), counts, strict=True)
        # A drained worker's rows are not told apart from their neighbours: the longest gap of all counts.
        if not kill or (reading.summary is not None and reading.summary.num_resumes)
    ]
    if not kill:
        target.operations.set_pool_size(Pool.DECODE, 2)
    target.wait_until_ready(2, 2)
    prefill = Readers(target.client, [prompt_of(PROMPT_TOKENS + BEFORE_TOKENS, seed + 99)], 2).finish()[0]
    return Pause(
        streams=num_streams,
        hit=busy[victim],
        pause_s=max(max(reading.gaps_s()[count - 1 :][:num_gaps]) for reading, count in after),
        longest_s=max(max(reading.gaps_s()[count - 1 :]) for reading, count in after),
        step_s=statistics.median(gap for reading, count in after for gap in reading.gaps_s()[: count - 1]),
        prefill_s=prefill.ttft_s,
    )


def main() -> None:
    """Measure both, for each number of streams."""
    rounds: dict[str, list[Pause]] = {}
    with served("--prefill", "2", "--decode", "2", "--kv-memory-mib", "256") as target:
        for what in ("kill", "drain"):
            for num_streams in STREAMS:
                name = f"{what}, {num_streams} streams"
                rounds[name] = [
                    measure(target, num_streams, kill=what == "kill", seed=1000 * number)
                    for number in range(ROUNDS)
                ]
                print(name, _medians(rounds[name]), file=sys.stderr, flush=True)
    print(
        json.dumps(
            {
                name: {"medians": _medians(each), "rounds": [asdict(pause) for pause in each]}
                for name, each in rounds.items()
            }
        )
    )


def _medians(pauses: list[Pause]) -> dict[str, float]:
    return {
        "pause_s": statistics.median(pause.pause_s for pause in pauses),
        "most_pause_s": max(pause.pause_s for pause in pauses),
        "longest_s": statistics.median(pause.longest_s for pause in pauses),
        "most_longest_s": max(pause.longest_s for pause in pauses),
        "prefill_s": statistics.median(pause.prefill_s for pause in pauses),
        "step_s": statistics.median(pause.step_s for pause in pauses),
        "in_steps": statistics.median(pause.in_steps for pause in pauses),
        "most_in_steps": max(pause.in_steps for pause in pauses),
    }


if __name__ == "__main__":
    main()
