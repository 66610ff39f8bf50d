"""What two workers must have in common before one may write into the other's cache."""

from __future__ import annotations

from collections.abc import Mapping

from twinpool.engine.kernels.port import KernelFacts
from twinpool.kv.layout import KvLayout

Fingerprint = dict[str, str | int | float]


def layout_fingerprint(
    layout: KvLayout, kernel: KernelFacts, *, weights_digest: str, rope_theta: float
) -> Fingerprint:
    """Describe the caches a worker writes and reads.

    Two workers with equal fingerprints compute the same keys and values for the same tokens, up to rounding.
    weights_digest: the prepared model's digest, over weights and configuration.
    """
    return {
        "weights_digest": weights_digest,
        "weights": kernel.weights,
        "kernels": kernel.revision,
        "rope_theta": rope_theta,
        "num_layers": layout.num_layers,
        "num_kv_heads": layout.num_kv_heads,
        "head_dim": layout.head_dim,
        "dtype": layout.dtype,
        "block_size": layout.block_size,
    }


def first_difference(
    ours: Mapping[str, str | int | float], theirs: Mapping[str, str | int | float]
) -> str | None:
    """Name the first field in which two fingerprints differ, or that only one has; None if they agree."""
    for name in (*ours, *theirs):
        if name not in ours or name not in theirs or ours[name] != theirs[name]:
            return name
    return None
