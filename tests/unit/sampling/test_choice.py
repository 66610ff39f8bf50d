"""A choice's next token is drawn by its place, and it ends by its log: alike on both pools, and resumed."""

from __future__ import annotations

import pytest

from decode_worker.batch import Row
from prefill_worker.prompts import Prompt
from twinpool.engine.batch import SamplingRow
from twinpool.kv.reservations import RowReady
from twinpool.sampling.choice import ChoiceState
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, Attempt, Prefill
from twinpool.types import AttemptId, HandoffId, Token

EOS = frozenset({0})
PROMPT = (4, 5, 6)


@pytest.mark.parametrize(
    ("token", "num_outputs", "ignore_eos", "reason"),
    [
        (7, 1, False, None),
        (7, 2, False, "length"),
        (0, 1, False, "stop"),
        (0, 2, False, "stop"),
        (0, 1, True, None),
        (0, 2, True, "length"),
    ],
)
def test_end_of_sequence_comes_before_length(
    token: int, num_outputs: int, ignore_eos: bool, reason: str | None
) -> None:
    """num_outputs counts the token itself."""
    params = SamplingParams(2, ignore_eos=ignore_eos)
    choice = ChoiceState(params, 0, PROMPT, [9] * (num_outputs - 1), EOS)
    assert choice.append(Token(token)) == reason
    assert choice.output_ids == [9] * (num_outputs - 1) + [token]


def test_the_next_token_is_drawn_by_its_index_in_prompt_and_log() -> None:
    params = SamplingParams(9, seed=3)
    choice = ChoiceState(params, 1, PROMPT, [7], EOS)
    assert choice.next() == SamplingRow(params, 1, position=4)
    choice.append(Token(8))
    assert choice.next() == SamplingRow(params, 1, position=5)


def test_what_goes_on_elsewhere_or_resumes_draws_as_it_would_have_here() -> None:
    params = SamplingParams(9, seed=3)
    undisturbed = ChoiceState(params, 1, PROMPT, [], EOS)
    log = (7, 8)
    for token in log:
        undisturbed.append(Token(token))
    resumed = Prompt.of(
        Prefill(HandoffId("h"), (Attempt(AttemptId("a"), 1),), PROMPT, log, params, None, 1), EOS, 0.0
    )
    moved = Row.of(RowReady(Admit(AttemptId("b"), HandoffId("h"), 1, PROMPT, log, params), (0, 1)), EOS)
    assert resumed.choice == moved.choice == undisturbed
    assert moved.append(Token(2)).token == Token(2)
    assert moved.choice != undisturbed
