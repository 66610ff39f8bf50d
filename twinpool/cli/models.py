"""`twinpool pull` and `twinpool estimate`: get a model onto this machine, and tell what it needs there."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from twinpool.checkpoint.dtype import resolve_dtype
from twinpool.checkpoint.estimate import MemoryEstimate, find_description, most_weights
from twinpool.cli.configuration import load_config
from twinpool.cli.estimate_table import need_lines, need_of
from twinpool.cli.progress import shown_steps
from twinpool.config import ConfigError
from twinpool.prepare.pull import pull as pull_model


def pull(model: str | None = None, *, cache_dir: Path | None = None) -> None:
    """Fetch a model and prepare it for serving; does nothing where that is done. Prints the folder.

    Parameters
    ----------
    model
        A known name, a hub name (owner/name), a local folder or a GGUF file.
    cache_dir
        Where prepared models are kept; by default the user's cache folder.
    """
    settings = load_config({"model": model, "cache_dir": cache_dir})
    with shown_steps() as progress:
        folder = pull_model(settings.model, cache_dir=settings.cache_dir, progress=progress)
    print(folder)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Formats:
    """What numbers are stored as."""

    dtype: str | None = None
    """Format of the cache: auto, bfloat16 or float32."""
    kv_dtype: str | None = None
    """Format of the cache alone: auto (as dtype) or int8."""
    weights: str | None = None
    """Format of the weights: auto (at most int8), bf16, int8 or int4."""


def estimate(
    model: str | None = None,
    *,
    context: int | None = None,
    requests: int = 1,
    kv_memory_mib: int | None = None,
    cache_dir: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    formats: Formats = Formats(),
) -> None:
    """Tell how much memory a model's weights and cache take, and how many requests fit.

    Parameters
    ----------
    model
        A model that was pulled, or a folder with its config.json.
    context
        Tokens of one request, prompt and answer together; by default the longest the model takes.
    requests
        Requests served at once.
    kv_memory_mib
        Memory for the cache of each worker, in MiB.
    cache_dir
        Where prepared models are kept; by default the user's cache folder.
    json
        Print one JSON object.
    """
    settings = load_config(
        {
            "model": model,
            **asdict(formats),
            "kv_memory_mib": kv_memory_mib,
            "cache_dir": cache_dir,
        }
    )
    description = find_description(settings.model, settings.cache_dir)
    num_tokens = description.max_context_tokens if context is None else context
    if num_tokens < 1 or requests < 1:
        raise ConfigError("context and requests must be at least 1")
    engine = settings.engine
    memory = MemoryEstimate(
        description,
        resolve_dtype(engine.dtype, engine.kernels, engine.kv_dtype),
        most_weights(engine.weights, engine.kernels),
    )
    need = need_of(memory, settings, num_tokens, requests)
    print(json_format.dumps(need) if json else "\n".join(need_lines(need)))
