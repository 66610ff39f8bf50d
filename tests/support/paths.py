"""Where the project's files are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
DATA = ROOT / "tests" / "data"
CLIENTS = ROOT / ".venv" / "clients"
"""The environment of other people's programs and clients, which `make test-clients` makes."""
