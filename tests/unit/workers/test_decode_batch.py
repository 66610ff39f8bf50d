"""Rows are stepped oldest first until they end, and then wait for the router to evict them."""

from __future__ import annotations

from decode_worker.batch import Batch, Row
from twinpool.kv.reservations import RowReady
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Admit, RowToken
from twinpool.types import AttemptId, FinishReason, HandoffId, Token

EOS = frozenset({0})


def row(attempt: str = "a", *, max_tokens: int = 5, ignore_eos: bool = False) -> Row:
    """A row of 4 prompt tokens whose log is 10, 11."""
    params = SamplingParams(max_tokens, seed=3, ignore_eos=ignore_eos)
    return Row.of(
        RowReady(Admit(AttemptId(attempt), HandoffId("h"), 1, (1, 2, 3, 4), (10, 11), params), blocks=(6, 2)),
        EOS,
    )


def batch_of(*attempts: str) -> Batch:
    batch = Batch()
    for attempt in attempts:
        batch.enter(row(attempt))
    return batch


def test_a_step_feeds_the_newest_token_and_draws_the_one_behind_it() -> None:
    step = row().next_step()
    assert (step.token_id, step.position, step.block_table) == (11, 5, [6, 2])
    assert (step.sample.position, step.sample.choice_index, step.sample.params.seed) == (6, 1, 3)


def test_a_token_is_reported_at_its_place_in_the_log_and_fed_next() -> None:
    running = row()
    assert running.append(Token(12)) == RowToken(AttemptId("a"), 2, Token(12), None)
    assert running.append(Token(13)) == RowToken(AttemptId("a"), 3, Token(13), None)
    step = running.next_step()
    assert (step.token_id, step.position, step.sample.position) == (13, 7, 8)


def test_a_row_ends_with_its_last_token() -> None:
    running = row(max_tokens=3)
    assert running.append(Token(12)) == RowToken(AttemptId("a"), 2, Token(12), FinishReason.LENGTH)
    assert running.finished


def test_a_row_ends_at_end_of_sequence_unless_told_to_ignore_it() -> None:
    stopped, going_on = row(), row(ignore_eos=True)
    assert stopped.append(Token(0)).finish_reason is FinishReason.STOP
    assert going_on.append(Token(0)).finish_reason is None
    assert (stopped.finished, going_on.finished) == (True, False)


def test_the_oldest_rows_are_stepped_first_up_to_the_limit() -> None:
    batch = batch_of("a", "b", "c")
    assert [each.attempt for each in batch.active(most=2)] == ["a", "b"]
    batch.leave(AttemptId("a"))
    assert [each.attempt for each in batch.active(most=2)] == ["b", "c"]


def test_a_finished_row_keeps_its_place_unstepped_until_it_leaves() -> None:
    batch = batch_of("a", "b")
    for running, token in zip(batch.active(most=9), [0, 12], strict=True):
        running.append(Token(token))
    assert [each.attempt for each in batch.active(most=9)] == ["b"]
    assert batch.attempts() == ["a", "b"]
    assert batch.leave(AttemptId("a"))
    assert not batch.leave(AttemptId("a"))
    assert len(batch) == 1
