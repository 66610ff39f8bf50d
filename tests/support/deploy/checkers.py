"""Runs the programs that check files of other formats than Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.paths import CLIENTS

PROGRAMS = CLIENTS / "bin"
"""Those that come with packages."""


def run(program: str | Path, *arguments: str | Path) -> str:
    """Its output; fails with it."""
    command = [str(program), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
