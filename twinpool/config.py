"""The whole configuration: one small frozen tree, each knob with its unit, validated once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from twinpool.resources import PoolResources, ResourcesError
from twinpool.types import Pool

DEFAULT_MODEL = "smollm2-135m-instruct"
DTYPES = ("auto", "bfloat16", "float32")
KV_DTYPES = ("auto", "int8")
WEIGHTS = ("auto", "bf16", "int8", "int4")
KERNELS = ("auto", "native", "torch")
TRANSPORTS = ("auto", "shm", "ray")
LOG_FORMATS = ("text", "json")


class ConfigError(ValueError):
    """A knob has a value that cannot work; the message names it."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What every worker's engine is built from."""

    dtype: str = "auto"
    """Format of the cache: bfloat16, float32 (of weights and arithmetic, too), or auto: what is faster."""
    kv_dtype: str = "auto"
    """Format of the cache alone: int8, half of bfloat16's memory (native kernels), or auto: as dtype says."""
    weights: str = "auto"
    """Format of the weights: bf16, int8, int4, or auto: the model's own if it is narrow, else int8."""
    kernels: str = "auto"
    """What computes: native, torch (slower, in bf16 or float32), or auto: native where it is built."""
    block_size: int = 16
    """Tokens a cache block holds."""
    kv_memory_mib: int = 512
    """Memory for the cache of each worker, in MiB."""
    max_batch_rows: int = 64
    """Most rows in one decode step."""
    prefill_budget_tokens: int = 256
    """Most prompt tokens in one prefill step, over all prompts."""
    step_target_ms: int = 150
    """How long a prefill step should last: fewer tokens where it would take longer; 0: no matter."""
    threads: int = 0
    """Compute threads of each worker, at most the CPUs it may use; 0 shares these among the first workers."""
    deterministic: bool = False
    """Make tokens independent of the batch in every dtype (float32 always is)."""

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPES, f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        for name, known in (("kv_dtype", KV_DTYPES), ("weights", WEIGHTS), ("kernels", KERNELS)):
            value, flag = getattr(self, name), name.replace("_", "-")
            _require(value in known, f"{flag} must be one of {', '.join(known)}, not {value!r}")
        _require(
            self.dtype != "float32" or self.weights == "auto",
            f"weights cannot be {self.weights} where dtype is float32, which is of weights, too",
        )
        _require(
            self.kv_dtype == "auto" or (self.dtype != "float32" and self.kernels != "torch"),
            f"kv-dtype {self.kv_dtype} needs native kernels and another dtype than float32",
        )
        _require(
            self.kernels != "torch" or self.weights in ("auto", "bf16"),
            f"weights {self.weights} need native kernels, not torch",
        )
        _require(1 <= self.block_size <= 256, f"block-size must be 1 to 256, not {self.block_size}")
        _require(self.kv_memory_mib >= 1, f"kv-memory-mib must be at least 1, not {self.kv_memory_mib}")
        _require(self.max_batch_rows >= 1, f"max-batch-rows must be at least 1, not {self.max_batch_rows}")
        _require(
            self.prefill_budget_tokens >= 1,
            f"prefill-budget-tokens must be at least 1, not {self.prefill_budget_tokens}",
        )
        _require(
            0 <= self.step_target_ms <= 60_000,
            f"step-target-ms must be 0 to 60000, not {self.step_target_ms}",
        )
        _require(self.threads >= 0, f"threads must not be negative, not {self.threads}")


@dataclass(frozen=True, kw_only=True)
class HandoffConfig:
    """How caches move from prefill to decode workers."""

    transport: str = "auto"
    """auto, shm (one host) or ray. auto takes shm where the pair shares a host."""
    checksum: bool = False
    """Verify each block's checksum before a row may use it."""
    reservation_ttl_s: float = 30.0
    """Seconds a reservation lives without progress."""
    quarantine_report_s: float = 2.0
    """Seconds after which a writer that has not let go of revoked blocks is reported."""
    join_timeout_s: float = 20.0
    """Seconds to open and warm one pair's connection."""

    @property
    def renewal_s(self) -> float:
        """Seconds without progress until a reservation is renewed; and the most that one chunk may take."""
        return self.reservation_ttl_s / 3

    def __post_init__(self) -> None:
        _require(
            self.transport in TRANSPORTS,
            f"transport must be one of {', '.join(TRANSPORTS)}, not {self.transport!r}",
        )
        for name in ("reservation_ttl_s", "quarantine_report_s", "join_timeout_s"):
            _require(getattr(self, name) > 0, f"{name.replace('_', '-')} must be positive")


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """How the router queues, places and ends requests."""

    queue_max_requests: int = 1024
    """Most requests waiting for a prefill worker."""
    prefill_max_prompts: int = 8
    """Most prompts given to one prefill worker at a time."""
    queue_max_tokens: int = 2_000_000
    """Most prompt tokens waiting for a prefill worker, over all requests."""
    max_attempts: int = 8
    """Times a request is tried before the loss of its worker, or of its hand-off, ends it."""
    max_request_s: float = 3600.0
    """Longest life of a request, whatever its client's deadline."""
    stuck_after_s: float = 5.0
    """Seconds without progress after which a worker is replaced, at least 2; or ten of its own steps."""
    overtake_s: float = 1.0
    """Seconds that younger requests may overtake one that found no room; then room is held for it."""
    slow_reader_s: float = 60.0
    """Seconds one write to a client may block before its request is ended."""
    grace_s: float = 10.0
    """Seconds that running streams get to finish when the server stops."""
    orphan_timeout_s: float = 60.0
    """Seconds that workers on a joined cluster wait for the next router when theirs is gone."""
    start_timeout_s: float = 120.0
    """Seconds for all workers to become ready."""
    crash_loop_limit: int = 5
    """Failed starts of one worker in a row after which it is given up."""

    def __post_init__(self) -> None:
        at_least_one = ("queue_max_requests", "queue_max_tokens", "prefill_max_prompts", "crash_loop_limit")
        for name in (*at_least_one, "max_attempts"):
            _require(getattr(self, name) >= 1, f"{name.replace('_', '-')} must be at least 1")
        for name in ("overtake_s", "grace_s"):
            _require(getattr(self, name) >= 0, f"{name.replace('_', '-')} must not be negative")
        # Idle workers report once a second.
        _require(self.stuck_after_s >= 2, f"stuck-after-s must be at least 2, not {self.stuck_after_s:g}")
        positive = ("slow_reader_s", "orphan_timeout_s", "start_timeout_s", "max_request_s", "stuck_after_s")
        for name in positive:
            _require(getattr(self, name) > 0, f"{name.replace('_', '-')} must be positive")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Everything `twinpool serve` needs."""

    model: str = DEFAULT_MODEL
    """A known name, a hub name (owner/name), a local folder or a GGUF file."""
    prefill: int = 1
    """Prefill workers."""
    decode: int = 1
    """Decode workers."""
    prefill_resources: str = ""
    """For each prefill worker: cpus=2,gpus=1,memory-mib=4096,threads=2,placement=spread,resource.NAME=1,label.NAME=VALUE,env.NAME=VALUE."""  # noqa: E501 (help is one line)
    decode_resources: str = ""
    """The same for each decode worker."""
    host: str = "127.0.0.1"
    """Address of the inference port."""
    port: int = 50051
    """Inference port; 0 takes a free one."""
    ops_host: str = "127.0.0.1"
    """Address of the operations port."""
    ops_port: int = 50052
    """Operations port; 0 takes a free one."""
    metrics_host: str = "127.0.0.1"
    """Address of the metrics port."""
    metrics_port: int = 9464
    """Metrics port (HTTP /metrics); 0 takes a free one."""
    ray_address: str = "local"
    """Ray cluster to join; local starts one for this command alone."""
    deployment: str = "twinpool"
    """Name on a joined cluster; a newer router of the same name takes the workers over."""
    cache_dir: Path | None = None
    """Where prepared models are kept; none takes the user's cache folder."""
    log_level: str = "warning"
    """debug, info, warning or error."""
    log_format: str = "text"
    """text, or json: an object a line on stderr, for the router's and all workers' logs."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    handoff: HandoffConfig = field(default_factory=HandoffConfig)
    router: RouterConfig = field(default_factory=RouterConfig)

    def __post_init__(self) -> None:
        _require(self.prefill >= 1, f"prefill must be at least 1, not {self.prefill}")
        _require(self.decode >= 1, f"decode must be at least 1, not {self.decode}")
        for name in ("prefill_resources", "decode_resources"):
            try:
                PoolResources.parse(getattr(self, name))
            except ResourcesError as error:
                raise ConfigError(f"{name.replace('_', '-')}: {error}") from error
        for name in ("port", "ops_port", "metrics_port"):
            value = getattr(self, name)
            _require(0 <= value <= 65535, f"{name.replace('_', '-')} must be 0 to 65535, not {value}")
        _require(
            re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", self.deployment) is not None,
            f"deployment must be 1 to 40 of a-z, 0-9 and inner hyphens, not {self.deployment!r}",
        )
        levels = ("debug", "info", "warning", "error")
        _require(self.log_level in levels, f"log-level must be one of {', '.join(levels)}")
        _require(self.log_format in LOG_FORMATS, f"log-format must be one of {', '.join(LOG_FORMATS)}")

    def resources(self, pool: Pool) -> PoolResources:
        """What each worker of a pool asks for."""
        return PoolResources.parse(self.prefill_resources if pool is Pool.PREFILL else self.decode_resources)
