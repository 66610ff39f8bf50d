"""The options of `twinpool bench serve`, named as `vllm bench serve` names them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from twinpool.bench.metrics import LATENCIES
from twinpool.client.blocking import DEFAULT_TARGET
from twinpool.config import ConfigError

Switch = Annotated[bool, Parameter(negative=())]
Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())]
Backend = Literal["twinpool", "openai", "openai-chat"]
Dataset = Literal["random", "text", "custom", "azure", "mooncake"]
TRACES = ("azure", "mooncake")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Whom to ask."""

    target: str = DEFAULT_TARGET
    """A Twinpool server, as HOST:PORT."""
    backend: Backend = "twinpool"
    """What the server speaks: Twinpool's gRPC, or OpenAI's completions or chat over HTTP."""
    base_url: str | None = None
    """An HTTP server, in place of --host and --port."""
    host: str = "127.0.0.1"
    """Of an HTTP server."""
    port: int = 8000
    """Of an HTTP server."""
    endpoint: str | None = None
    """Path of an HTTP server; by default /v1/completions, or /v1/chat/completions for openai-chat."""
    model: str | None = None
    """Name of the model; by default the first that the server lists."""
    tokenizer: Path | None = None
    """A tokenizer.json or its folder: to write ids as text for chat, to cut a text for HTTP servers."""
    timeout: float = 600.0
    """Seconds that an answer may take, and any other wait."""

    @property
    def url(self) -> str:
        """Of the HTTP server, without the path."""
        return self.base_url or f"http://{self.host}:{self.port}"

    @property
    def path(self) -> str:
        """Of the HTTP server's endpoint."""
        is_chat = self.backend == "openai-chat"
        return self.endpoint or ("/v1/chat/completions" if is_chat else "/v1/completions")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """How much to ask, and when."""

    request_rate: float = math.inf
    """Requests a second, at random times; inf sends all at once, or a trace's at its own times."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of gaps: 1 is a Poisson process, less is burstier, more is evener."""
    max_concurrency: int | None = None
    """Most requests at a time; others wait, unsent."""
    num_prompts: int = 1000
    """Requests to send; fewer if the file has fewer."""
    num_warmups: int = 0
    """Requests before, of the same kind and with other tokens, which count for nothing."""
    seed: int = 0
    """Of prompts, lengths and times."""
    ignore_eos: Switch = False
    """Go on past the model's end-of-sequence token, so that answers have all their tokens."""
    temperature: float = 0.0
    """0 takes the most likely token."""
    top_p: float | None = None
    """Keep the smallest set of most likely tokens whose probability reaches this."""
    top_k: int | None = None
    """Keep only this many of the most likely tokens."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What to ask."""

    dataset_name: Dataset = "random"
    """random tokens, pieces of a text, a custom file of prompts, or lengths and times of a trace."""
    dataset_path: Path | None = None
    """The text (default: a page of prose), the prompts as JSON lines, or the trace."""
    random_input_len: int = 1024
    """Tokens of a random prompt."""
    random_output_len: int = 128
    """Most tokens of its answer."""
    random_range_ratio: float = 0.0
    """Random lengths vary by this share, up and down; 0 to below 1."""
    input_len: int | None = None
    """Tokens of a prompt, for random (in place of --random-input-len) and text (default 512)."""
    output_len: int | None = None
    """Most tokens of an answer, for random, text and custom (default 128)."""
    trace_scale: float = 1.0
    """A trace's lengths times this."""
    trace_speed: float = 1.0
    """A trace's times, so many times as fast; without effect where there is a --request-rate."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutcomeOptions:
    """What to make of it."""

    goodput: Several = ()
    """Objectives in milliseconds, such as ttft:1500 tpot:100 (of ttft, tpot, itl, e2el)."""
    percentile_metrics: str = ",".join(LATENCIES)
    """The latencies to show and save."""
    metric_percentiles: str = "50,90,99"
    """Percentiles of them."""
    save_result: Path | None = None
    """Write the result to this file, as one JSON object."""
    save_detailed: Switch = False
    """Put each request's lengths, times and error into it."""
    append_result: Switch = False
    """Add it to the file as one line, rather than replace the file."""
    result_dir: Path | None = None
    """Folder of the file; made where it is not there."""
    result_filename: Path | None = None
    """The same as --save-result."""
    metadata: Several = ()
    """KEY=VALUE pairs to write beside it."""
    label: str | None = None
    """Name of the run in its result; by default the backend."""
    report: Path | None = None
    """Write a report to this file, as one HTML page."""
    disable_tqdm: Switch = False
    """Show no progress."""

    @property
    def objectives(self) -> Mapping[str, float]:
        """Milliseconds by latency. Raises ConfigError."""
        pairs = [word.partition(":") for word in self.goodput]
        objectives = {name: _number(value, "goodput") for name, _, value in pairs}
        _require(set(objectives) <= set(LATENCIES), f"goodput must be of {', '.join(LATENCIES)}")
        return objectives

    @property
    def spreads(self) -> Sequence[str]:
        """Raises ConfigError."""
        names = [name.strip() for name in self.percentile_metrics.split(",") if name.strip()]
        _require(set(names) <= set(LATENCIES), f"percentile-metrics must be of {', '.join(LATENCIES)}")
        return names

    @property
    def percentiles(self) -> Sequence[float]:
        """Raises ConfigError."""
        found = [_number(word, "metric-percentiles") for word in self.metric_percentiles.split(",")]
        _require(all(percent <= 100 for percent in found), "metric-percentiles must be 0 to 100")
        return found

    @property
    def pairs(self) -> Mapping[str, str]:
        """The metadata. Raises ConfigError."""
        _require(all("=" in word for word in self.metadata), "metadata must be KEY=VALUE")
        return {key: value for key, _, value in (word.partition("=") for word in self.metadata)}

    @property
    def result_file(self) -> Path | None:
        """Where the result goes. Raises ConfigError."""
        file = self.save_result or self.result_filename
        _require(not (self.save_result and self.result_filename), "save-result and result-filename are one")
        _require(
            file is not None or self.result_dir is None, "result-dir needs save-result, which names the file"
        )
        return file if file is None or self.result_dir is None else self.result_dir / file


def check(server: ServerOptions, traffic: TrafficOptions, data: DataOptions) -> None:
    """Raise ConfigError for the first value that cannot work."""
    for name, value in (
        ("request-rate", traffic.request_rate),
        ("burstiness", traffic.burstiness),
        ("trace-scale", data.trace_scale),
        ("trace-speed", data.trace_speed),
        ("timeout", server.timeout),
    ):
        _require(value > 0, f"{name} must be above 0, not {value:g}")
    for name, count in (
        ("num-prompts", traffic.num_prompts),
        ("max-concurrency", traffic.max_concurrency),
        ("random-input-len", data.random_input_len),
        ("random-output-len", data.random_output_len),
        ("input-len", data.input_len),
        ("output-len", data.output_len),
    ):
        _require(count is None or count >= 1, f"{name} must be at least 1, not {count}")
    _require(traffic.num_warmups >= 0, "num-warmups must be at least 0")
    _require(0 <= data.random_range_ratio < 1, "random-range-ratio must be from 0 to below 1")
    _require(
        data.dataset_path is not None or data.dataset_name in ("random", "text"),
        f"dataset-name {data.dataset_name} needs dataset-path",
    )
    _require(math.isfinite(traffic.burstiness), "burstiness must be finite")
    _require(
        server.backend != "openai-chat" or server.tokenizer is not None or data.dataset_name == "custom",
        f"dataset-name {data.dataset_name} over openai-chat needs tokenizer, to write its tokens as text",
    )


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    _require(number >= 0, f"{name} must have numbers of at least 0, not {text!r}")
    return number


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
