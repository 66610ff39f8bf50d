"""Prints what a dependency group of pyproject.toml requires, which older versions of pip do not read."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main() -> None:
    (group,) = sys.argv[1:]
    print(*tomllib.loads(PYPROJECT.read_text())["dependency-groups"][group])


if __name__ == "__main__":
    main()
