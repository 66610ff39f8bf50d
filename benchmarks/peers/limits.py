"""A machine's own limits, measured: bytes read from memory, and float32 products, by 1 and 2 threads."""

from __future__ import annotations

import os

# One thread each: those that measure are ours.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

THREADS = (1, 2)
_FLOATS = 64 << 20  # 256 MiB a thread, which no cache holds
_SIDE = 1024
_TRIES = 7


def main() -> None:
    """Print one JSON object."""
    result = []
    for threads in THREADS:
        with ThreadPoolExecutor(threads) as pool:
            result.append(
                {
                    "threads": threads,
                    "read_gb_per_s": threads
                    * _FLOATS
                    * 4e-9
                    / _seconds(pool, [_reader() for _ in range(threads)]),
                    "products_g_per_s": threads
                    * _SIDE**3
                    * 1e-9
                    / _seconds(pool, [_multiplier() for _ in range(threads)]),
                }
            )
    print(json.dumps({"limits": result}))


def _reader() -> Callable[[], object]:
    numbers = np.ones(_FLOATS, dtype=np.float32)
    return lambda: np.dot(numbers, numbers)


def _multiplier() -> Callable[[], object]:
    matrix = np.ones((_SIDE, _SIDE), dtype=np.float32)
    return lambda: matrix @ matrix


def _seconds(pool: ThreadPoolExecutor, work: list[Callable[[], object]]) -> float:
    """Median time until all threads have done their part."""
    took = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        for done in [pool.submit(part) for part in work]:
            done.result()
        took.append(time.perf_counter() - start)
    return median(took)


if __name__ == "__main__":
    main()
