"""The prompts of `twinpool bench serve`, as its options ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TextIO

from twinpool.bench.prompts import Lengths, Prompt, custom_prompts, random_prompts, text_prompts
from twinpool.bench.traces import azure_rows, mooncake_rows, traced_prompts
from twinpool.cli.bench_serve_options import DataOptions
from twinpool.cli.bench_serve_target import Target
from twinpool.config import ConfigError

_PROSE = Path(__file__).parents[1] / "bench" / "prose.txt"
_INPUT_TOKENS = 512
_OUTPUT_TOKENS = 128


async def prompts_of(data: DataOptions, target: Target, count: int, seed: int) -> list[Prompt]:
    """At most so many, in the order in which they are sent. Raises ConfigError for a file that has none."""
    output_tokens = data.output_len or _OUTPUT_TOKENS
    match data.dataset_name:
        case "random":
            inputs = Lengths(data.input_len or data.random_input_len, data.random_range_ratio)
            outputs = Lengths(data.output_len or data.random_output_len, data.random_range_ratio)
            return random_prompts(count, inputs, outputs, target.ids, Random(seed))
        case "text":
            with _opened(data.dataset_path or _PROSE) as file:
                ids = await target.encode(file.read())
            return text_prompts(count, ids, data.input_len or _INPUT_TOKENS, output_tokens, Random(seed))
        case _:
            prompts = _from_file(data, target, count, seed, output_tokens)
    if not prompts:
        raise ConfigError(f"{data.dataset_path} has no prompts")
    return prompts


def _from_file(data: DataOptions, target: Target, count: int, seed: int, output_tokens: int) -> list[Prompt]:
    path = data.dataset_path or Path()
    with _opened(path) as file:
        match data.dataset_name:
            case "custom":
                return custom_prompts(file, output_tokens, str(path))[:count]
            case "azure":
                rows = azure_rows(file, count, str(path))
            case _:
                rows = mooncake_rows(file, count, str(path))
    return traced_prompts(rows, data.trace_scale, target.ids, seed)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with path.open(encoding="utf-8") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"dataset-path: cannot read {path}: {error}") from None
