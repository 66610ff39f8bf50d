"""What a run asks for, drawn from random tokens, from a text, or taken from a file of prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from twinpool.config import ConfigError

_FEWEST_TOKENS_OF_A_VOCABULARY = 30_000
_SPECIAL_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Prompt:
    """content: token ids, or text. output_tokens: most to produce. at_s: when it came, in a trace."""

    content: str | Sequence[int]
    output_tokens: int
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whole numbers of tokens, each as likely as the other, from mean - ratio x mean to mean + ratio x mean.

    ratio: 0 (always the mean) to less than 1. No length is below one token.
    """

    mean: int
    ratio: float = 0.0

    def draw(self, rng: Random) -> int:
        """One of them."""
        low, high = math.floor(self.mean * (1 - self.ratio)), math.ceil(self.mean * (1 + self.ratio))
        return rng.randint(max(1, low), max(1, high))


def ordinary_ids(vocab_size: int | None = None) -> range:
    """Token ids to draw random prompts from.

    The same for most models, so that two servers get the same prompts of one seed. The lowest ids, often
    special ones, are left out where the vocabulary is not tiny. None: of unknown size.
    """
    end = min(vocab_size or _FEWEST_TOKENS_OF_A_VOCABULARY, _FEWEST_TOKENS_OF_A_VOCABULARY)
    return range(_SPECIAL_TOKENS if end > 2 * _SPECIAL_TOKENS else 0, end)


def random_prompts(
    count: int, inputs: Lengths, outputs: Lengths, ids: Sequence[int], rng: Random
) -> list[Prompt]:
    """Prompts that have nothing in common, so that no cache of prefixes helps."""
    return [
        Prompt(rng.choices(ids, k=input_tokens), output_tokens)
        for input_tokens, output_tokens in [(inputs.draw(rng), outputs.draw(rng)) for _ in range(count)]
    ]


def text_prompts(
    count: int, token_ids: Sequence[int], input_tokens: int, output_tokens: int, rng: Random
) -> list[Prompt]:
    """Pieces of a text, each from a place of its own; at the end the text begins anew."""
    if not token_ids:
        raise ConfigError("the text has no tokens")
    length = len(token_ids)
    starts = [rng.randrange(length) for _ in range(count)]
    return [
        Prompt([token_ids[(start + at) % length] for at in range(input_tokens)], output_tokens)
        for start in starts
    ]


def custom_prompts(lines: Iterable[str], output_tokens: int, name: str) -> list[Prompt]:
    """One prompt a line, in order: `{"prompt": "...", "output_tokens": 64}`, the latter where it has its own.

    name: of the file, for errors. Raises ConfigError for a line that is none.
    """
    prompts = []
    for number, row in json_lines(lines, name):
        text, tokens = row.get("prompt"), row.get("output_tokens", output_tokens)
        if not isinstance(text, str) or not text:
            raise ConfigError(f'{name}, line {number}: "prompt" must be text')
        if not isinstance(tokens, int) or tokens < 1:
            raise ConfigError(f'{name}, line {number}: "output_tokens" must be at least 1')
        prompts.append(Prompt(text, tokens))
    return prompts


def json_lines(lines: Iterable[str], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file with one a line, and the lines' numbers. Raises ConfigError."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{name}, line {number}: must be an object")
        yield number, row
