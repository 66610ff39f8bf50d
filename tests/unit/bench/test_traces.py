"""Traces replay their own lengths and times, scaled; equal prefix blocks stay equal."""

from __future__ import annotations

import pytest

from twinpool.bench.traces import Row, azure_rows, mooncake_rows, traced_prompts
from twinpool.config import ConfigError

AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "2023-11-16 18:15:46.6805900,374,44\n",
    "2023-11-16 18:15:50.9951690,396,109\n",
    "2023-11-16 18:15:51.0000000,1,1\n",
]
MOONCAKE = [
    '{"timestamp": 0, "input_length": 1024, "output_length": 52, "hash_ids": [7, 8]}\n',
    '{"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]}\n',
]
IDS = range(100, 30_000)


def test_azure_rows_have_lengths_and_times() -> None:
    first, second = azure_rows(AZURE, 2, "f")
    assert (first.input_tokens, first.output_tokens) == (374, 44)
    assert (second.input_tokens, second.output_tokens) == (396, 109)
    assert second.at_s - first.at_s == pytest.approx(4.314579)


def test_mooncake_rows_have_blocks_too() -> None:
    assert mooncake_rows(MOONCAKE, 9, "f") == [Row(0.0, 1024, 52, [7, 8]), Row(1.5, 700, 5, [7, 9])]


def test_lengths_are_scaled_to_at_least_one_token() -> None:
    first, second, third = traced_prompts(azure_rows(AZURE, 3, "f"), 0.25, IDS, 0)
    assert [len(prompt.content) for prompt in (first, second, third)] == [94, 99, 1]
    assert [prompt.output_tokens for prompt in (first, second, third)] == [11, 27, 1]
    assert first.content[:4] != second.content[:4]


def test_blocks_of_one_name_are_the_same_tokens_and_others_are_not() -> None:
    first, second = traced_prompts(mooncake_rows(MOONCAKE, 2, "f"), 0.5, IDS, 0)
    assert (len(first.content), len(second.content)) == (512, 350)
    assert first.content[:256] == second.content[:256]
    assert first.content[256:350] != second.content[256:]
    assert [prompt.at_s for prompt in (first, second)] == [0.0, 1.5]
    assert traced_prompts(mooncake_rows(MOONCAKE, 2, "f"), 0.5, IDS, 0) == [first, second]
    assert traced_prompts(mooncake_rows(MOONCAKE, 2, "f"), 0.5, IDS, 1) != [first, second]


def test_what_is_no_trace_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="here is no Azure trace"):
        azure_rows(MOONCAKE, 9, "here")
    with pytest.raises(ConfigError, match="here is no Mooncake trace"):
        mooncake_rows(['{"timestamp": 0}'], 9, "here")
    with pytest.raises(ConfigError, match="here, line 1"):
        mooncake_rows(AZURE, 9, "here")
