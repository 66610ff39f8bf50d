"""Whether native kernels are still several times faster than torch: their ratio, in one run of a minute.

    python -m benchmarks.quick

Both compute with one thread, in turn, so that a machine's bad minutes meet both. Fails where a ratio is below
its floor, which lies far below what is measured on any machine: other ratios are for people to read.
"""

from __future__ import annotations

import sys
from statistics import median

from twinpool.bench.engine import EngineBench, Speed
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.config import DEFAULT_MODEL
from twinpool.engine.kernels.native.library import native_library
from twinpool.engine.kernels.port import KernelSettings
from twinpool.prepare.pull import pull

ROUNDS = 3
SECONDS = 1.0
FLOORS = {"decode, 1 row": 2.0, "decode, 4 rows": 1.5}
"""Measured on AVX2: 8 and 4.5."""


def main() -> int:
    """Print the ratios; 1 where one is too low."""
    if native_library() is None:
        print("no native kernels here: nothing to compare")
        return 0
    model = PreparedModel.load(pull(DEFAULT_MODEL))
    benches = [
        EngineBench(model, dtype, KernelSettings(kernels=kernels), most_rows=16, most_tokens=512)
        for dtype, kernels in (("float32", "torch"), ("bfloat16", "native"))
    ]
    low = False
    print(f"{benches[1].kernel} against {benches[0].kernel}, one thread each, tokens/s")
    for name, rows in (("decode, 1 row", 1), ("decode, 4 rows", 4), ("decode, 16 rows", 16), ("prefill", 0)):
        theirs, ours = _in_turn(benches, rows)
        ratio, floor = ours / theirs, FLOORS.get(name, 0.0)
        low |= ratio < floor
        below = f"  BELOW {floor}" if ratio < floor else ""
        print(f"  {name:<16} {ours:>8,.0f} / {theirs:>6,.0f} = {ratio:5.2f}{below}")
    return int(low)


def _in_turn(benches: list[EngineBench], rows: int) -> tuple[float, float]:
    speeds: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for bench, found in zip(benches, speeds, strict=True):
            found.append(_speed(bench, rows).tokens_per_s)
    return median(speeds[0]), median(speeds[1])


def _speed(bench: EngineBench, rows: int) -> Speed:
    return bench.decode(rows, 64, SECONDS) if rows else bench.prefill(512, SECONDS)


if __name__ == "__main__":
    sys.exit(main())
