"""What every driver measures, in the same way, and the JSON that it prints; standard library only."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

DECODES = ((1, 64), (4, 64), (16, 64), (16, 544))
"""Rows of a step, and tokens of each row's context halfway through the measuring."""
MOST_ROWS, MOST_TOKENS = 16, 1024
"""What an engine needs room for: requests, and tokens of each."""
PROMPT_TOKENS = 512
_STEPS = 32
_FEWEST_SAMPLES = 3
# Long prompts take long to read, before the clock runs: no figure takes much longer than this.
_MOST_S = 20.0


class Engine(Protocol):
    """A loaded engine. name: what computes, its version and its weights; for people."""

    name: str

    def steps(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Iterator[int]:
        """Continue all prompts greedily, each by so many tokens, whatever they are.

        Yields after each step the number of tokens that it made. Steps after the prompts were read have a row
        of every prompt.
        """
        ...


def main(load: Callable[[Path, int], Engine]) -> None:
    """Measure the engine that `load` makes from a model and a number of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    engine = load(given.model, given.threads)
    for _ in engine.steps([_prompt(64, row) for row in range(MOST_ROWS)], 3):
        pass  # what an engine prepares when it is first used is no step's time
    decode = [
        {"batch": rows, "context": context, "tokens_per_s": _decode(engine, rows, context, given.seconds)}
        for rows, context in DECODES
    ]
    prefill = [{"prompt": PROMPT_TOKENS, "tokens_per_s": _prefill(engine, given.seconds)}]
    result = {"engine": engine.name, "decode": decode, "prefill": prefill, "threads": given.threads}
    print(json.dumps(result), flush=True)


def _decode(engine: Engine, rows: int, context: int, seconds: float) -> float:
    prompts = [_prompt(context - _STEPS // 2, row) for row in range(rows)]
    for _ in engine.steps(
        prompts, 3
    ):  # what an engine prepares when it first meets a shape is no step's time
        pass
    took: list[float] = []
    give_up = time.perf_counter() + _MOST_S
    while sum(took) < seconds and (not took or time.perf_counter() < give_up):
        made, start = 0, time.perf_counter()
        for new in engine.steps(prompts, _STEPS + 1):
            now = time.perf_counter()
            if made >= rows and new == rows:
                took.append(now - start)
            made += new
            start = time.perf_counter()
    return rows / median(took)


def _prefill(engine: Engine, seconds: float) -> float:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) <= _FEWEST_SAMPLES or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in engine.steps([_prompt(PROMPT_TOKENS, len(took))], 1):
            pass
        took.append(time.perf_counter() - start)
    return PROMPT_TOKENS / median(took[1:])


def _prompt(num_tokens: int, seed: int) -> list[int]:
    """A prompt of its own for each seed, so that no cache of prefixes can know it."""
    return [(seed * 7919 + at * 31) % 40000 + 100 for at in range(num_tokens)]
