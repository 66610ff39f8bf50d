"""Compiles the native kernels, once for each instruction set, with the compiler $CXX names, or Zig's."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

SOURCES = Path("twinpool/engine/kernels/native/csrc")
BUILDS = Path("twinpool/engine/kernels/native/builds")

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_NEON = {"neon-dotprod": ("-march=armv8.2-a+dotprod",)}
INSTRUCTIONS = {
    ("Linux", "x86_64"): {
        "avx2": _AVX2,
        "avx512vnni": (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
    },
    ("Linux", "aarch64"): _NEON,
    ("Darwin", "arm64"): _NEON,
}
# Zig wants a processor where others take an architecture.
_ZIG_NAMES = {"-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod"}
# No exceptions, type information or standard library: what is built needs libc alone.
_FLAGS = ("-std=c++17", "-O3", "-fno-exceptions", "-fno-rtti")
_LIBRARY = ("-fPIC", "-shared", "-s", "-fvisibility=hidden")
_TIMEOUT_S = 600


def needs_compiler() -> bool:
    """Whether something is to be compiled, and no compiler is named."""
    stale = [name for name in _variants() if not _is_newest(BUILDS / f"{name}.so")]
    return bool(stale) and "CXX" not in os.environ


def compile_native(root: Path) -> list[Path]:
    """Build what this machine's kind of processor may run into root; returns the libraries.

    A build that is newer than its sources stays. Where none can be had, that is said, and torch computes.
    """
    variants = _variants()
    if not variants:
        print(f"no native kernels for {platform.system()} on {platform.machine()}", file=sys.stderr)
    made = []
    for name, instructions in variants.items():
        library = root / BUILDS / f"{name}.so"
        if _is_newest(library) or _compile(library, instructions):
            made.append(library)
    return made


def _variants() -> dict[str, tuple[str, ...]]:
    return INSTRUCTIONS.get((platform.system(), platform.machine()), {})


def _is_newest(library: Path) -> bool:
    inputs = [*SOURCES.iterdir(), Path(__file__)]
    return library.is_file() and library.stat().st_mtime > max(file.stat().st_mtime for file in inputs)


def _compile(library: Path, instructions: tuple[str, ...]) -> bool:
    library.parent.mkdir(parents=True, exist_ok=True)
    scratch = library.with_suffix(".new")
    sources = sorted(map(str, SOURCES.glob("*.cpp")))
    command = [*compiler(instructions), *_LIBRARY, "-o", str(scratch), *sources, "-lpthread", "-lm"]
    try:
        subprocess.run(command, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{error}\nno {library.stem} kernels: torch computes in their place, slower", file=sys.stderr)
        return False
    scratch.replace(library)  # whoever has the old one mapped keeps it
    return True


def compiler(instructions: tuple[str, ...], python: str = sys.executable) -> list[str]:
    """The beginning of a command that compiles for such processors. python: whose environment Zig is in."""
    named = os.environ.get("CXX")
    if named:
        return [*shlex.split(named), *_FLAGS, *instructions]
    # Zig would keep what it made in the user's cache folder; it lives as long as pip's environment here.
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(Path(sys.prefix) / "zig-cache"))
    translated = (_ZIG_NAMES.get(flag, flag) for flag in instructions)
    return [python, "-m", "ziglang", "c++", "-nostdlib++", *_FLAGS, *translated]
