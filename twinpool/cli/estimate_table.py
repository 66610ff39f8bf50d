"""A memory estimate as one object for programs and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from twinpool.checkpoint.estimate import MemoryEstimate
from twinpool.config import ServeConfig

_MIB = 1 << 20


class Need(TypedDict):
    """What a model needs. kv_bytes is the cache of all requests; fits: requests at once in one worker's."""

    model: str
    dtype: str
    weights: str
    context_tokens: int
    requests: int
    weights_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_request: int
    kv_bytes: int
    kv_memory_bytes: int
    fits: int


def need_of(memory: MemoryEstimate, settings: ServeConfig, num_tokens: int, num_requests: int) -> Need:
    """The need of so many requests of so many tokens each, in the cache that the settings give a worker."""
    kv_memory_bytes = settings.engine.kv_memory_mib * _MIB
    return Need(
        model=settings.model,
        dtype=memory.dtype,
        weights="float32" if memory.dtype == "float32" else memory.weights,
        context_tokens=num_tokens,
        requests=num_requests,
        weights_bytes=memory.weights_bytes,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        kv_bytes_per_request=memory.kv_bytes(num_tokens),
        kv_bytes=memory.kv_bytes(num_tokens, num_requests),
        kv_memory_bytes=kv_memory_bytes,
        fits=memory.requests_that_fit(kv_memory_bytes, num_tokens, settings.engine.block_size),
    )


def need_lines(need: Need) -> Iterator[str]:
    """The same, in words."""
    tokens = f"{need['context_tokens']:,} tokens"
    yield f"{need['model']}, cache in {need['dtype']}, weights in {need['weights']}"
    for name, num_bytes in (
        ("weights", need["weights_bytes"]),
        ("KV cache of a token", need["kv_bytes_per_token"]),
        (f"KV cache of a request of {tokens}", need["kv_bytes_per_request"]),
        (f"KV cache of {need['requests']:,} at once", need["kv_bytes"]),
    ):
        yield f"  {name:<44}{num_bytes:>20,} bytes {_readable(num_bytes):>12}"
    yield f"  a cache of {_readable(need['kv_memory_bytes'])} holds {need['fits']:,} such requests at once"


def _readable(num_bytes: int) -> str:
    size, units = float(num_bytes), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024 and unit != "GiB":
        size, unit = size / 1024, next(units)
    return f"{size:,.1f} {unit}"
