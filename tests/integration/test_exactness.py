"""In float32 our tokens equal transformers' own: every length, alone and together, each transport."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from tests.support.models.reference import ReferenceCase, reference_case, reference_cases
from tests.support.system.running import RunningSystem, StartSystem, quiesce

AT_ONCE = 16
NUM_SHORT = 8
"""Tokens compared where many answers are; the first come from prefill, hand-off and decode alike."""


def ask(system: RunningSystem, case: ReferenceCase, num_tokens: int) -> tuple[str, list[int], list[int]]:
    """The case's name, our tokens, and transformers'."""
    answer = system.client.complete(
        case.prompt_ids, max_tokens=num_tokens, temperature=0.0, ignore_eos=True, timeout=120.0
    )
    return case.name, list(answer.token_ids), list(case.output_ids[:num_tokens])


def differing(
    system: RunningSystem, cases: Sequence[ReferenceCase], *, at_once: int, num_tokens: int
) -> list[tuple[str, list[int], list[int]]]:
    """Cases whose tokens are not the reference's."""
    with ThreadPoolExecutor(at_once) as threads:
        answers = list(threads.map(lambda case: ask(system, case, num_tokens), cases))
    return [answer for answer in answers if answer[1] != answer[2]]


def test_reference_covers_what_it_should() -> None:
    lengths = {len(case.prompt_ids) for case in reference_cases()}
    assert {length % 16 for length in lengths} == set(range(16))
    assert {1, 255, 256, 257, 511, 512, 513, 600} <= lengths
    assert any(case.messages for case in reference_cases())
    assert any(case.text and not case.text.isascii() for case in reference_cases())


def test_tokens_of_each_prompt_alone_equal_transformers(system: RunningSystem) -> None:
    assert differing(system, reference_cases(), at_once=1, num_tokens=4) == []


def test_tokens_of_sixteen_at_once_equal_transformers(system: RunningSystem) -> None:
    assert differing(system, reference_cases(), at_once=AT_ONCE, num_tokens=24) == []


@pytest.mark.parametrize("name", ["chat", "chat with system", "chat of three turns"])
def test_chat_prompt_has_transformers_own_tokens(system: RunningSystem, name: str) -> None:
    case = reference_case(name)
    assert case.messages is not None
    answer = system.client.complete_chat(
        case.messages, max_tokens=NUM_SHORT, temperature=0.0, ignore_eos=True
    )
    assert answer.prompt_token_ids == case.prompt_ids
    assert answer.token_ids == case.output_ids[:NUM_SHORT]


def test_text_prompt_has_transformers_own_tokens(system: RunningSystem) -> None:
    texts = [case for case in reference_cases() if case.text is not None]
    for case in texts:
        assert system.client.tokenize(str(case.text)) == case.prompt_ids, case.name


@pytest.mark.parametrize(("pools", "transport"), [((1, 1), "ray"), ((2, 2), "auto")])
def test_tokens_equal_transformers_with_each_transport_and_more_workers(
    start_system: StartSystem, pools: tuple[int, int], transport: str
) -> None:
    system = start_system(prefill=pools[0], decode=pools[1], transport=transport, checksum=True)
    # `auto` takes the transport of the other tests.
    cases = reference_cases()[:: 1 if transport == "ray" else 2]
    assert differing(system, cases, at_once=AT_ONCE, num_tokens=NUM_SHORT) == []
    quiesce(system)
    system.stop()


@pytest.mark.exactness
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("pools", "transport", "at_once"), list(product([(1, 1), (2, 2)], ["shm", "ray"], [1, AT_ONCE]))
)
def test_whole_grid_equals_transformers(
    start_system: StartSystem, pools: tuple[int, int], transport: str, at_once: int
) -> None:
    system = start_system(prefill=pools[0], decode=pools[1], transport=transport)
    assert differing(system, reference_cases(), at_once=at_once, num_tokens=24) == []
    quiesce(system)
    system.stop()


def test_end_of_sequence_as_first_token_gives_empty_text(system: RunningSystem) -> None:
    case = reference_case("ends at once")
    assert case.eos_at == 0
    answer = system.client.complete(case.prompt_ids, max_tokens=NUM_SHORT, temperature=0.0)
    assert (answer.text, answer.finish_reason, len(answer.token_ids)) == ("", "stop", 1)
    on = system.client.complete(case.prompt_ids, max_tokens=NUM_SHORT, temperature=0.0, ignore_eos=True)
    assert on.token_ids == case.output_ids[:NUM_SHORT]


def test_special_tokens_are_shown_only_when_asked_for(system: RunningSystem) -> None:
    case = reference_case("ends at once")
    shown = system.client.complete(case.prompt_ids, max_tokens=1, temperature=0.0, skip_special_tokens=False)
    assert shown.text == "<|im_end|>"
