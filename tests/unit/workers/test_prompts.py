"""A prompt is read whole, in order, and its cache is pushed block by complete block, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefill_worker.prompts import Prompt
from twinpool.kv.pool import Lease, Owner
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import Attempt, Prefill
from twinpool.types import AttemptId, HandoffId
from twinpool.worker.handoff import State

PARAMS = SamplingParams(9, seed=7)
EOS = frozenset({1000})


def prompt_of(num_prompt: int, num_outputs: int = 0) -> Prompt:
    """A prompt of tokens 0, 1, 2, …, the last of them its token log."""
    tokens = tuple(range(num_prompt + num_outputs))
    prompt = Prompt.of(
        Prefill(
            HandoffId("h"),
            (Attempt(AttemptId("a"), 2),),
            tokens[:num_prompt],
            tokens[num_prompt:],
            PARAMS,
            "d",
            1,
        ),
        EOS,
        0.0,
    )
    assert prompt.handoff is not None
    prompt.handoff.state = State.ACCEPTED
    return prompt


def copied(prompt: Prompt, block_size: int) -> tuple[int, ...]:
    """The blocks that it has copied now."""
    copy = prompt.copy(block_size)
    if copy is None:
        return ()
    assert prompt.handoff is not None
    assert (copy.decode, copy.handoff, copy.first) == ("d", "h", prompt.handoff.num_copied)
    assert copy.is_last is (prompt.num_remaining == 0)
    prompt.handoff.num_copied += len(copy.blocks)
    return tuple(copy.blocks)


def test_the_token_log_is_read_after_the_prompt_and_the_next_token_drawn_behind_both() -> None:
    prompt = prompt_of(3, 2)
    prompt.num_computed = 3
    chunk = prompt.chunk(2)
    assert (chunk.token_ids, chunk.start) == ((3, 4), 3)
    assert chunk.sample is not None
    assert (chunk.sample.params, chunk.sample.choice_index, chunk.sample.position) == (PARAMS, 2, 5)


def test_only_the_last_chunk_draws_a_token() -> None:
    prompt = prompt_of(6)
    assert prompt.chunk(5).sample is None
    assert prompt.chunk(6).sample is not None


def test_a_block_is_pushed_once_it_is_complete_and_the_last_once_it_is_final() -> None:
    prompt = prompt_of(5)
    prompt.lease = Lease("a", Owner.ROW, [7, 8, 9])
    pushed = []
    for num_computed in range(6):
        prompt.num_computed = num_computed
        pushed.append(copied(prompt, block_size=2))
    assert pushed == [(), (), (7,), (), (8,), (9,)]


@given(st.integers(1, 60), st.integers(1, 9), st.lists(st.integers(1, 20)))
def test_in_whatever_chunks_it_is_read_everything_is_read_and_pushed_once(
    num_tokens: int, block_size: int, sizes: list[int]
) -> None:
    prompt = prompt_of(num_tokens)
    prompt.lease = Lease("a", Owner.ROW, list(range(-(-num_tokens // block_size))))
    read: list[int] = []
    pushed: list[int] = []
    for size in [*sizes, num_tokens]:
        if prompt.num_remaining == 0:
            break
        chunk = prompt.chunk(min(size, prompt.num_remaining))
        assert chunk.start == len(read)
        read += chunk.token_ids
        prompt.num_computed += len(chunk.token_ids)
        pushed += copied(prompt, block_size)
    assert tuple(read) == prompt.token_ids
    assert pushed == prompt.blocks


def test_nothing_is_copied_before_the_decode_worker_accepts() -> None:
    prompt = prompt_of(5)
    prompt.lease, prompt.num_computed = Lease("a", Owner.ROW, [7, 8, 9]), 5
    assert prompt.handoff is not None
    prompt.handoff.state = State.ASKED
    assert prompt.copy(block_size=2) is None
    prompt.handoff.state = State.ACCEPTED
    assert copied(prompt, block_size=2) == (7, 8, 9)
