"""How our processes start others in Python: the same interpreter, and no module of the folder they run in."""

from __future__ import annotations

import sys


def python_command(module: str, *arguments: str) -> list[str]:
    """Runs a module as a program. Without -P, a `json.py` in the working folder would win over Python's."""
    return [sys.executable, "-P", "-m", module, *arguments]
