"""A step's results belong to its items, one each."""

from __future__ import annotations

import pytest

from twinpool.engine.apart import Failed
from twinpool.types import AttemptId, Token
from twinpool.worker.turn import Stepped


def test_results_come_with_their_attempts_and_items_in_the_steps_order() -> None:
    error = Failed(RuntimeError(), alone=True)
    a, b, c = (AttemptId(name) for name in "abc")
    stepped = Stepped({b: "row b", a: "row a", c: "row c"}, [Token(7), None, error], 0.5)
    assert list(stepped) == [(b, "row b", Token(7)), (a, "row a", None), (c, "row c", error)]


def test_a_step_has_one_result_for_every_item() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(Stepped({AttemptId("a"): 1, AttemptId("b"): 2}, [Token(14)], 0.5))
