"""Which number format `auto` means on a CPU."""

from __future__ import annotations

import pytest

from twinpool.checkpoint.dtype import has_bfloat16, resolve_dtype


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_named_format_stays(dtype: str) -> None:
    assert resolve_dtype(dtype) == dtype


def test_auto_is_one_of_the_two() -> None:
    assert resolve_dtype("auto") in ("bfloat16", "float32")


@pytest.mark.parametrize(
    ("cpuinfo", "computes"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("flags\t\t: fpu amx_bf16\n\nflags\t\t: fpu amx_bf16\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("Features\t: fp asimd sbf16x\n", False),
        ("flags\t\t: fpu avx512_bf16\n\nflags\t\t: fpu avx2\n", False),  # a core without: threads move
        ("model name\t: bf16\n", False),
        ("", False),
    ],
)
def test_bfloat16_needs_the_instructions_on_every_core(cpuinfo: str, computes: bool) -> None:
    assert has_bfloat16(cpuinfo) is computes
