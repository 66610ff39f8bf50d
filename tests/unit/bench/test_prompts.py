"""Prompts have the lengths that were asked for, and are the same for the same seed."""

from __future__ import annotations

from random import Random

import pytest

from twinpool.bench.prompts import (
    Lengths,
    Prompt,
    custom_prompts,
    ordinary_ids,
    random_prompts,
    text_prompts,
)
from twinpool.config import ConfigError


def test_lengths_are_all_those_of_the_range() -> None:
    rng = Random(0)
    assert {Lengths(8).draw(rng) for _ in range(50)} == {8}
    assert {Lengths(10, 0.2).draw(rng) for _ in range(500)} == {8, 9, 10, 11, 12}
    assert {Lengths(1, 0.9).draw(rng) for _ in range(500)} == {1, 2}


def test_random_prompts_have_their_lengths_and_nothing_in_common() -> None:
    first, second = random_prompts(2, Lengths(40), Lengths(7), ordinary_ids(49152), Random(3))
    assert (len(first.content), len(second.content)) == (40, 40)
    assert (first.output_tokens, second.output_tokens) == (7, 7)
    assert first.content[:4] != second.content[:4]
    assert [first, second] == random_prompts(2, Lengths(40), Lengths(7), ordinary_ids(49152), Random(3))


def test_two_servers_get_the_same_ids_where_both_have_them() -> None:
    assert ordinary_ids(49152) == ordinary_ids(151_936) == ordinary_ids() == range(100, 30_000)
    assert ordinary_ids(300) == range(100, 300)
    assert ordinary_ids(120) == range(120)


def test_a_piece_of_a_text_goes_on_at_its_begin() -> None:
    prompts = text_prompts(20, [1, 2, 3], 7, 5, Random(0))
    assert {tuple(prompt.content) for prompt in prompts} == {
        (1, 2, 3, 1, 2, 3, 1),
        (2, 3, 1, 2, 3, 1, 2),
        (3, 1, 2, 3, 1, 2, 3),
    }
    with pytest.raises(ConfigError, match="no tokens"):
        text_prompts(1, [], 7, 5, Random(0))


def test_a_file_of_prompts_may_say_how_long_each_answer_is() -> None:
    lines = ['{"prompt": "one", "output_tokens": 3}\n', "\n", '{"prompt": "two"}\n']
    assert custom_prompts(lines, 9, "f") == [Prompt("one", 3), Prompt("two", 9)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "f, line 1: "),
        ("[]", "f, line 1: must be an object"),
        ("{}", '"prompt" must be text'),
        ('{"prompt": ""}', '"prompt" must be text'),
        ('{"prompt": "a", "output_tokens": 0}', '"output_tokens" must be at least 1'),
        ('{"prompt": "a", "output_tokens": "3"}', '"output_tokens" must be at least 1'),
    ],
)
def test_a_line_that_is_no_prompt_is_named(line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        custom_prompts([line], 9, "f")
