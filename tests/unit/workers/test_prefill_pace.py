"""A prefill step's budget follows how long steps take."""

from __future__ import annotations

from prefill_worker.pace import Pace

MOST, BLOCK = 256, 16


def pace(target_s: float = 0.25) -> Pace:
    return Pace(MOST, target_s, BLOCK)


def test_the_first_step_takes_the_most() -> None:
    assert pace().budget_tokens == MOST


def test_steps_become_as_long_as_they_should_be() -> None:
    each = pace()
    each.stepped(256, 0.512)
    assert each.budget_tokens == 112  # 125 tokens of 2 ms, in whole blocks
    for _ in range(20):
        each.stepped(each.budget_tokens, each.budget_tokens * 0.001)
    assert each.budget_tokens == 240
    for _ in range(20):
        each.stepped(each.budget_tokens, each.budget_tokens * 0.0001)
    assert each.budget_tokens == MOST


def test_a_slow_step_of_few_tokens_does_not_make_steps_small() -> None:
    each = pace()
    each.stepped(256, 0.2)
    each.stepped(10, 0.1)
    assert each.budget_tokens == MOST


def test_a_step_that_lasts_too_long_counts_however_few_tokens_it_has() -> None:
    each = pace()
    each.stepped(64, 6.4)
    assert each.budget_tokens == BLOCK


def test_without_a_target_every_step_takes_the_most() -> None:
    each = pace(0.0)
    each.stepped(256, 10.0)
    assert each.budget_tokens == MOST
