"""The ARM build computes what the x86 build does, to the bit: one program for both, run here and in qemu."""

from __future__ import annotations

import platform
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import CLIENTS, ROOT

QEMU = shutil.which("qemu-aarch64")
COMPILER = runpy.run_path(str(ROOT / "native_build" / "compiler.py"))
SOURCES = ROOT / COMPILER["SOURCES"]
PROGRAM = ROOT / "tests" / "support" / "native" / "answers.cpp"
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is missing (Debian: apt-get install qemu-user)"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the same program has to run here as x86's"),
    pytest.mark.timeout(600),  # the first time, Zig compiles a C library for each of them
]


def answers_of(*command: str | Path) -> dict[str, list[str]]:
    said = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    return {name: numbers for name, *numbers in map(str.split, said.splitlines())}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program for each instruction set."""
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CXX", raising=False)
        patch.setenv("ZIG_GLOBAL_CACHE_DIR", str(CLIENTS / "zig-cache"))
        for machine, variant in (("x86_64", "avx2"), ("aarch64", "neon-dotprod")):
            flags = COMPILER["INSTRUCTIONS"]["Linux", machine][variant]
            zig = COMPILER["compiler"](flags, str(CLIENTS / "bin" / "python"))
            target = ["-target", f"{machine}-linux-musl", "-static", "-I", SOURCES, "-o", folder / variant]
            subprocess.run([*zig, *target, PROGRAM, *sorted(SOURCES.glob("*.cpp"))], check=True, timeout=500)
    return {file.name: file for file in folder.iterdir()}


def test_arm_computes_the_same_bits(programs: dict[str, Path]) -> None:
    """Sums of codes, products in every format, and steps with every cache, to the tokens that are drawn."""
    here = answers_of(programs["avx2"])
    assert {name.split("-")[0] for name in here} == {"dots", "product", "read", "next", "drawn"}
    assert answers_of(QEMU or "", programs["neon-dotprod"]) == here


def test_a_processor_without_dot_products_is_told_from_others(programs: dict[str, Path]) -> None:
    assert answers_of(QEMU or "", "-cpu", "cortex-a72", programs["neon-dotprod"]) == {"unusable": []}
