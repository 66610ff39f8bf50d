"""Two workers' fingerprints differ exactly where their caches would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twinpool.engine.fingerprint import Fingerprint, first_difference, layout_fingerprint
from twinpool.engine.kernels.port import KernelFacts
from twinpool.kv.layout import KvLayout

LAYOUT = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, dtype="bfloat16")
KERNEL = KernelFacts("native avx2", "int4", "native 1")


def fingerprint(
    layout: KvLayout = LAYOUT, kernel: KernelFacts = KERNEL, digest: str = "ab12", rope_theta: float = 1e5
) -> Fingerprint:
    return layout_fingerprint(layout, kernel, weights_digest=digest, rope_theta=rope_theta)


def test_equal_workers_have_no_difference() -> None:
    assert first_difference(fingerprint(), fingerprint()) is None
    other_processor = replace(KERNEL, name="native avx512vnni")
    assert first_difference(fingerprint(), fingerprint(kernel=other_processor)) is None


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (fingerprint(kernel=replace(KERNEL, weights="int8")), "weights"),
        (fingerprint(kernel=replace(KERNEL, revision="torch 1")), "kernels"),
        (fingerprint(replace(LAYOUT, num_layers=31)), "num_layers"),
        (fingerprint(replace(LAYOUT, num_kv_heads=9)), "num_kv_heads"),
        (fingerprint(replace(LAYOUT, head_dim=32)), "head_dim"),
        (fingerprint(replace(LAYOUT, block_size=32)), "block_size"),
        (fingerprint(replace(LAYOUT, dtype="float32")), "dtype"),
        (fingerprint(digest="cd34"), "weights_digest"),
        (fingerprint(rope_theta=1e4), "rope_theta"),
    ],
)
def test_the_differing_field_is_named(other: Fingerprint, field: str) -> None:
    assert first_difference(fingerprint(), other) == field
    assert first_difference(other, fingerprint()) == field


def test_a_field_that_only_one_side_has_is_a_difference() -> None:
    newer = {**fingerprint(), "window": 128}
    assert first_difference(fingerprint(), newer) == "window"
    assert first_difference(newer, fingerprint()) == "window"
