"""JSON files that others wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twinpool.errors import ModelSourceError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelSourceError if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelSourceError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelSourceError(f"{path} holds no JSON object")
    return value
