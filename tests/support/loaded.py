"""What a fresh interpreter loads."""

from __future__ import annotations

import subprocess
import sys


def modules_loaded_by(code: str, *arguments: str) -> set[str]:
    """The modules in a fresh interpreter after it ran some code."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)", *arguments]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    return set(output.split())
