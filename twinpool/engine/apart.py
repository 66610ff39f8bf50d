"""Takes a failed step apart: what makes the engine fail costs nothing else its step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
Step = Callable[[Sequence[Item]], Sequence[Result]]


@dataclass(frozen=True, slots=True)
class Failed:
    """An item on which the engine raised.

    alone: nothing shows that the engine would fail on other items too, as it does where all of a step fail.
    """

    error: Exception
    alone: bool


def step_apart(
    step: Step[Item, Result], items: Sequence[Item], beat: Callable[[], None]
) -> list[Result | Failed]:
    """Each item's result of one step. If that fails: each one's of a step of its own, or how that failed.

    To be computed again is harmless: an item writes the same slots of the cache with the same numbers, and
    reads no other item's. beat: called before each item that is computed alone.
    """
    try:
        return [*step(items)]
    except Exception as error:
        log.exception("a step of %d failed", len(items))
        if len(items) == 1:
            return [Failed(error, alone=True)]
    outcomes = [_alone(step, item, beat) for item in items]
    alone = not all(isinstance(outcome, Exception) for outcome in outcomes)
    return [Failed(each, alone) if isinstance(each, Exception) else each for each in outcomes]


def _alone(step: Step[Item, Result], item: Item, beat: Callable[[], None]) -> Result | Exception:
    beat()
    try:
        return step([item])[0]
    except Exception as error:  # noqa: BLE001 (returned)
        return error
