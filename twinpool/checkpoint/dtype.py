"""Chooses the number format of the cache for this machine's CPU."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

from twinpool.engine.kernels.native.library import native_library

_LINUX_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def resolve_dtype(dtype: str, kernels: str = "auto", kv_dtype: str = "auto") -> str:
    """The format of a cache meant here: kv_dtype, if that is not `auto`, else dtype, if that is not.

    bfloat16 for native kernels, and for torch where the CPU has instructions for it; elsewhere torch emulates
    it, and is slower than with float32. kernels: see `EngineConfig`.
    """
    if kv_dtype != "auto":
        return kv_dtype
    if dtype != "auto":
        return dtype
    native = kernels != "torch" and native_library() is not None
    return "bfloat16" if native or _computes_bfloat16() else "float32"


def _computes_bfloat16() -> bool:
    if platform.system() == "Darwin":
        return _sysctl("hw.optional.arm.FEAT_BF16") == "1"
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return has_bfloat16(text)


def has_bfloat16(cpuinfo: str) -> bool:
    """Whether the CPUs in the text of Linux's /proc/cpuinfo (x86 or arm) list bfloat16 instructions."""
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return bool(lines) and all(_LINUX_FLAGS.intersection(line.split()) for line in lines)


def _sysctl(name: str) -> str:
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        # Asking costs milliseconds; the bound is for a machine in trouble.
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()
