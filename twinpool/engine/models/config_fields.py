"""Typed access to a config.json: foreign input, of which any field may be missing, wrong or hostile."""

from __future__ import annotations

import math
from collections.abc import Mapping

from twinpool.errors import UnsupportedModel

Config = Mapping[str, object]

# No model comes near; a damaged or hostile file must not make us reserve memory by its word.
_MOST = 1 << 24


def size_field(config: Config, name: str, default: int | None = None) -> int:
    """A whole number of at least 1; an absent or null one is the default. Raises UnsupportedModel."""
    value = config.get(name)
    if value is None:
        value = default
    if type(value) is not int:
        raise UnsupportedModel(f"{name} must be a whole number, not {value!r}")
    if not 1 <= value <= _MOST:
        raise UnsupportedModel(f"{name} is {value}, outside 1 to {_MOST}")
    return value


def positive_number(name: str, value: object) -> float:
    """A number of either JSON kind. Raises UnsupportedModel naming it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedModel(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError as error:
        raise UnsupportedModel(f"{name} is too large") from error
    if not (math.isfinite(number) and number > 0):
        raise UnsupportedModel(f"{name} is {number}, not a positive number")
    return number


def bool_field(config: Config, name: str, *, default: bool) -> bool:
    """True or false; absent is the default. Raises UnsupportedModel."""
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise UnsupportedModel(f"{name} must be true or false, not {value!r}")
    return value
