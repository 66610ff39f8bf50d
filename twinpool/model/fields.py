"""Typed access to foreign JSON: config files are input, and every field may be missing, wrong or hostile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinpool.errors import ModelSourceError, UnsupportedModel


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelSourceError if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelSourceError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelSourceError(f"{path} holds no JSON object")
    return value


def int_field(config: Mapping[str, object], name: str, default: int | None = None) -> int:
    """A whole number; an absent or null one is the default. Raises UnsupportedModel."""
    value = config.get(name)
    if value is None:
        value = default
    if type(value) is not int:
        raise UnsupportedModel(f"{name} must be a whole number, not {value!r}")
    return value


def to_float(name: str, value: object) -> float:
    """A number of either JSON kind. Raises UnsupportedModel naming it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedModel(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise UnsupportedModel(f"{name} is too large") from error


def bool_field(config: Mapping[str, object], name: str, *, default: bool) -> bool:
    """True or false; absent is the default. Raises UnsupportedModel."""
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise UnsupportedModel(f"{name} must be true or false, not {value!r}")
    return value
