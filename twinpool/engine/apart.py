"""Takes a failed step apart: what makes the engine fail costs nothing else its step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
Step = Callable[[Sequence[Item]], Sequence[Result]]


def step_apart(
    step: Step[Item, Result], items: Sequence[Item], beat: Callable[[], None]
) -> list[Result | Exception]:
    """Each item's result of one step. If that fails: each one's of a step of its own, or the error of that.

    To be computed again is harmless: an item writes the same slots of the cache with the same numbers, and
    reads no other item's. beat: called before each item that is computed alone.
    """
    try:
        return [*step(items)]
    except Exception as error:
        log.exception("a step of %d failed", len(items))
        if len(items) == 1:
            return [error]
    return [_alone(step, item, beat) for item in items]


def _alone(step: Step[Item, Result], item: Item, beat: Callable[[], None]) -> Result | Exception:
    beat()
    try:
        return step([item])[0]
    except Exception as error:  # noqa: BLE001 (returned)
        return error
