"""Whatever a client sends, admission either refuses it by field or makes parameters that can be served."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.entrance import admission
from router.entrance.asked import Conversation, TextPrompt, TokenPrompt
from router.entrance.request_limits import RequestLimits
from twinpool.errors import InvalidRequest
from twinpool.sampling.params import SamplingOptions
from twinpool.v1.inference_pb2 import ChatMessage

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32)
UINT64 = st.integers(0, 2**64 - 1)
LIMITS = st.builds(
    RequestLimits,
    context_tokens=st.integers(2, 10_000),
    vocab_size=st.integers(1, 200_000),
    pool_tokens=st.integers(0, 20_000),
)
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.none() | st.integers(-2, 10_000) | INT32,
        "temperature": st.none() | st.floats(0, 100, width=32) | FLOAT32,
        "top_k": st.none() | st.integers(-2, 300_000) | INT32,
        "top_p": st.none() | st.floats(0, 1, width=32) | FLOAT32,
        "seed": st.none() | UINT64,
        "ignore_eos": st.none() | st.booleans(),
        "min_p": st.none() | st.floats(0, 1, width=32) | FLOAT32,
    },
)
NONE_ASKED = SamplingOptions()


def can_be_served(asked: SamplingOptions, num_prompt_tokens: int, limits: RequestLimits) -> bool:
    """The rules once more, in other words."""
    holds = [limits.context_tokens, *([limits.pool_tokens] if limits.pool_tokens > 0 else [])]
    max_tokens, temperature = asked.get("max_tokens"), asked.get("temperature")
    top_k, top_p, min_p = asked.get("top_k"), asked.get("top_p"), asked.get("min_p")
    answer = 1 if max_tokens is None else max_tokens
    return (
        num_prompt_tokens > 0
        and answer >= 1
        and all(num_prompt_tokens + answer <= size for size in holds)
        and (temperature is None or temperature in Closed(0, 100))
        and (top_p is None or (top_p != 0 and top_p in Closed(0, 1)))
        and (top_k is None or not top_k < 0)
        and (min_p is None or min_p in Closed(0, 1))
    )


class Closed:
    """An interval without NaN."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def __contains__(self, number: float) -> bool:
        return not math.isnan(number) and max(self._low, min(number, self._high)) == number


@given(SAMPLING, st.integers(0, 12_000), LIMITS, UINT64)
@example(NONE_ASKED, 9, RequestLimits(10, 5, 0), 0)
@example(NONE_ASKED, 10, RequestLimits(10, 5, 0), 0)
@example(SamplingOptions(max_tokens=4), 6, RequestLimits(100, 5, 10), 0)
@example(SamplingOptions(max_tokens=5), 6, RequestLimits(100, 5, 10), 0)
def test_sampling_is_completed_or_refused(
    asked: SamplingOptions, num_prompt_tokens: int, limits: RequestLimits, drawn: int
) -> None:
    refusal = None
    try:
        params = admission.sampling_params(
            asked, prompt_field="text", num_prompt_tokens=num_prompt_tokens, limits=limits, seed=drawn
        )
    except InvalidRequest as error:
        refusal = error
    assert can_be_served(asked, num_prompt_tokens, limits) == (refusal is None)
    if refusal is not None:
        assert refusal.field in {"text", *(f"sampling.{name}" for name in SamplingOptions.__annotations__)}
        assert refusal.field in refusal.message
        return
    assert 1 <= params.max_tokens <= limits.request_tokens - num_prompt_tokens
    assert asked.get("max_tokens") in (None, params.max_tokens)
    assert params.temperature == 0 or 1e-5 <= params.temperature <= 100
    assert 0 <= params.top_k < limits.vocab_size
    assert 0 < params.top_p <= 1
    seed = asked.get("seed")
    assert params.seed == (drawn if seed is None else seed)
    assert params.ignore_eos is bool(asked.get("ignore_eos"))


@given(st.lists(INT32 | st.integers(0, 300)), st.integers(1, 300))
def test_ids_are_accepted_exactly_if_all_are_in_the_vocabulary(ids: list[int], vocab_size: int) -> None:
    limits = RequestLimits(100, vocab_size, 0)
    wrong = [index for index, id_ in enumerate(ids) if id_ not in range(vocab_size)]
    if not wrong:
        admission.check_token_ids("ids", ids, limits)
        return
    with pytest.raises(InvalidRequest) as caught:
        admission.check_token_ids("ids", ids, limits)
    assert caught.value.field == f"ids[{wrong[0]}]"


@given(st.text(max_size=700), st.integers(2, 10))
@example("x" * 256, 2)
@example("x" * 257, 2)
@example("é" * 129, 2)
def test_a_text_is_measured_in_bytes(text: str, context_tokens: int) -> None:
    limits = RequestLimits(context_tokens, 10, 0)
    if 0 < len(text.encode("utf-8")) <= 128 * context_tokens:
        assert admission.check_prompt(TextPrompt(text), limits) == "text"
        return
    with pytest.raises(InvalidRequest) as caught:
        admission.check_prompt(TextPrompt(text), limits)
    assert caught.value.field == "text"


@given(st.text(max_size=140))
@example("x" * 128)
@example("x" * 129)
@example("tab\t")
def test_a_request_id_is_short_and_printable(request_id: str) -> None:
    fine = len(request_id.encode()) <= 128 and request_id.isprintable()
    if fine:
        admission.check_request_id(request_id)
        return
    with pytest.raises(InvalidRequest):
        admission.check_request_id(request_id)


def test_prompts_are_named_by_their_field() -> None:
    limits = RequestLimits(100, 10, 50)
    turns = (ChatMessage(role="system"), ChatMessage(role="user", content="hello"))
    assert admission.check_prompt(TokenPrompt((1, 2)), limits) == "token_ids.ids"
    assert admission.check_prompt(Conversation(turns), limits) == "messages"


def test_every_refusal_states_its_limit() -> None:
    limits = RequestLimits(100, 10, 50)
    refusals: dict[str, Callable[[], None]] = {
        "128": lambda: admission.check_request_id("x" * 129),
        "1000": lambda: admission.check_abort_ids(["x"] * 1001),
        "0..9": lambda: admission.check_token_ids("ids", [10], limits),
        "is 100": lambda: admission.check_count("messages", 101, limits),
        "12800": lambda: admission.check_text("text", "x" * 12_801, limits),
        "49": lambda: complete(NONE_ASKED, 50, limits),
        "is 40": lambda: complete(SamplingOptions(max_tokens=41), 10, limits),
        "0..100": lambda: complete(SamplingOptions(temperature=101), 10, limits),
        "(0, 1]": lambda: complete(SamplingOptions(top_p=2), 10, limits),
    }
    for limit, refuse in refusals.items():
        with pytest.raises(InvalidRequest) as caught:
            refuse()
        assert limit in caught.value.message


def complete(asked: SamplingOptions, num_prompt_tokens: int, limits: RequestLimits) -> None:
    admission.sampling_params(
        asked, prompt_field="text", num_prompt_tokens=num_prompt_tokens, limits=limits, seed=0
    )
