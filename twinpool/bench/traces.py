"""Real traffic, replayed: when requests came and how long they were, from public traces.

Azure's traces of LLM inference (CSV: TIMESTAMP, ContextTokens, GeneratedTokens) and Mooncake's (JSON lines:
timestamp in milliseconds, input_length, output_length, hash_ids). Neither has texts; tokens are drawn.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from random import Random

from twinpool.bench.prompts import Prompt, json_lines
from twinpool.config import ConfigError

_MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Row:
    """One request. prefix_blocks: names of its prompt's blocks; equal names are equal tokens."""

    at_s: float
    input_tokens: int
    output_tokens: int
    prefix_blocks: Sequence[int] = ()


def azure_rows(lines: Iterable[str], count: int, name: str) -> list[Row]:
    """The first so many. name: of the file, for errors. Raises ConfigError."""
    try:
        return [
            Row(
                datetime.fromisoformat(row["TIMESTAMP"]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in islice(csv.DictReader(lines), count)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} is no Azure trace: {error!r}") from None


def mooncake_rows(lines: Iterable[str], count: int, name: str) -> list[Row]:
    """The first so many. name: of the file, for errors. Raises ConfigError."""
    try:
        return [
            Row(
                float(row["timestamp"]) / 1000,
                int(row["input_length"]),
                int(row["output_length"]),
                [int(block) for block in row["hash_ids"]],
            )
            for _, row in islice(json_lines(lines, name), count)
        ]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} is no Mooncake trace: {error!r}") from None


def traced_prompts(rows: Iterable[Row], scale: float, ids: Sequence[int], seed: int) -> list[Prompt]:
    """Prompts of the rows' lengths times scale, at least one token each."""
    rng = Random(seed)
    return [
        Prompt(
            _content(row, _scaled(row.input_tokens, scale), scale, ids, seed, rng),
            _scaled(row.output_tokens, scale),
            row.at_s,
        )
        for row in rows
    ]


def _content(
    row: Row, num_tokens: int, scale: float, ids: Sequence[int], seed: int, rng: Random
) -> Sequence[int]:
    block_tokens = _scaled(_MOONCAKE_BLOCK_TOKENS, scale)
    shared = [
        token
        for block in row.prefix_blocks
        for token in Random(f"{seed}/{block}").choices(ids, k=block_tokens)
    ][:num_tokens]
    return shared + rng.choices(ids, k=num_tokens - len(shared))


def _scaled(tokens: int, scale: float) -> int:
    return max(1, round(tokens * scale))
