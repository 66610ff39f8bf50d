"""`twinpool bench`: how fast this machine computes a model, and how exactly."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from twinpool.checkpoint.dtype import resolve_dtype
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.cli.configuration import load_config
from twinpool.cli.progress import shown_steps
from twinpool.config import ConfigError, ServeConfig
from twinpool.cpus import usable_cpus
from twinpool.prepare.pull import pull

Json = Annotated[bool, Parameter(negative=())]
_TEXT_TOKENS = 600
_COMPARED = (
    ("bf16", "bfloat16"),
    ("bf16", "int8"),
    ("int8", "bfloat16"),
    ("int4", "bfloat16"),
    ("auto", "bfloat16"),
    ("auto", "int8"),
)
"""Formats of weights and cache."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Computing:
    """How an engine computes."""

    threads: int | None = None
    """Threads to compute with; by default as many as there are CPUs to use."""
    dtype: str | None = None
    """Format of the cache: auto, bfloat16 or float32."""
    kv_dtype: str | None = None
    """Format of the cache alone: auto (as dtype) or int8."""
    weights: str | None = None
    """Format of the weights: auto, bf16, int8 or int4."""
    kernels: str | None = None
    """What computes: auto, native or torch."""


def engine(
    model: str | None = None,
    *,
    batch: str = "1,4,16",
    context: int = 64,
    prompt: int = 512,
    seconds: float = 3.0,
    computing: Computing = Computing(),
    json: Json = False,
) -> None:
    """Measure an engine alone, without a server: decode steps and prefill, in tokens a second.

    Parameters
    ----------
    model
        A known name, a hub name (owner/name), a local folder or a GGUF file.
    batch
        Rows of decode steps, separated by commas.
    context
        Tokens in each row's cache.
    prompt
        Tokens of a prompt.
    seconds
        How long each figure is measured.
    json
        Print one JSON object.
    """
    from twinpool.bench.engine import EngineBench  # noqa: PLC0415 (loads numpy)
    from twinpool.engine.kernels.port import KernelSettings  # noqa: PLC0415

    rows = _sizes(batch)
    if min(context, prompt) < 1 or seconds <= 0:
        raise ConfigError("context, prompt and seconds must be positive")
    settings = _settings(model, asdict(computing))
    bench = EngineBench(
        _prepared(settings),
        resolve_dtype(settings.engine.dtype, settings.engine.kernels, settings.engine.kv_dtype),
        KernelSettings(
            weights=settings.engine.weights,
            kernels=settings.engine.kernels,
            threads=settings.engine.threads or usable_cpus(),
        ),
        most_rows=max(rows),
        most_tokens=max(context, prompt),
    )
    decode = [bench.decode(size, context, seconds) for size in rows]
    prefill = bench.prefill(prompt, seconds)
    result = {
        "decode": [
            {"batch": each.rows, "context": each.tokens, "tokens_per_s": each.tokens_per_s} for each in decode
        ],
        "prefill": [{"prompt": prefill.tokens, "tokens_per_s": prefill.tokens_per_s}],
        "kernels": bench.kernel.name,
        "weights": bench.kernel.weights,
        "threads": settings.engine.threads or usable_cpus(),
    }
    if json:
        print(json_format.dumps(result))
        return
    print(f"{bench.kernel} weights, {result['threads']} threads")
    for each in decode:
        print(f"  decode, {each.rows} rows after {each.tokens} tokens {each.tokens_per_s:>12,.0f} tokens/s")
    print(f"  prefill, {prefill.tokens} tokens {prefill.tokens_per_s:>12,.0f} tokens/s")


def accuracy(model: str | None = None, *, text: Path | None = None, json: Json = False) -> None:
    """Compare formats of weights and cache with float32: divergence, agreement of the best token, perplexity.

    Parameters
    ----------
    model
        A known name, a hub name (owner/name), a local folder or a GGUF file.
    text
        A file whose first 600 tokens are read; by default a page of prose.
    json
        Print one JSON object a line.
    """
    from twinpool.bench.accuracy import PROSE, accuracy_of, log_probabilities  # noqa: PLC0415 (loads numpy)
    from twinpool.checkpoint.tokenizer import Tokenizer  # noqa: PLC0415
    from twinpool.engine.kernels.port import KernelSettings  # noqa: PLC0415

    prepared = _prepared(_settings(model, {}))
    words = (text or PROSE).read_text("utf-8")
    token_ids = Tokenizer.load(prepared.folder).encode(words)[:_TEXT_TOKENS]
    if len(token_ids) < 2:
        raise ConfigError("the text must have at least two tokens")
    threads = usable_cpus()
    name, reference = log_probabilities(prepared, "float32", KernelSettings(threads=threads), token_ids)
    found = [accuracy_of(name, reference, reference, token_ids)]
    for weights, cache in _COMPARED:
        how = KernelSettings(weights=weights, threads=threads)
        name, ours = log_probabilities(prepared, cache, how, token_ids)
        found.append(accuracy_of(f"--weights {weights}: {name}", ours, reference, token_ids))
    for each in found:
        print(
            json_format.dumps(asdict(each))
            if json
            else f"divergence {each.divergence:.5f}  agreement {each.agreement:.3f}  "
            f"perplexity {each.perplexity:.2f}  {each.kernels}"
        )


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"batch must be numbers of rows separated by commas, not {text!r}")
    return sizes


def _settings(model: str | None, engine_options: dict[str, object]) -> ServeConfig:
    return load_config({"model": model, **engine_options})


def _prepared(settings: ServeConfig) -> PreparedModel:
    with shown_steps() as progress:
        return PreparedModel.load(pull(settings.model, cache_dir=settings.cache_dir, progress=progress))
