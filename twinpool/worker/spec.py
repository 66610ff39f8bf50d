"""What a worker is told when it is started; travels to the actor as it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from twinpool.config import EngineConfig, HandoffConfig
from twinpool.types import Pool

_TIMEOUTS = {"start_timeout_s", "orphan_timeout_s"}
_DECIDES_NOTHING = {"incarnation", "router", "secret", "log_level", "log_format"} | _TIMEOUTS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One life of one worker.

    deployment: the system it belongs to. worker_id: its name, kept by its replacement.
    incarnation: this life's name, unique for all time.
    model_folder: the prepared folder, readable on the worker's node.
    model_digest: that of the weights which must be found there.
    dtype: float32 or bfloat16. threads: compute threads; fewer where its node lets it use fewer CPUs.
    shares_cores: these threads are its share, and it takes those that others on its node do not use, too.
    host: where its session listens; empty takes the node's own address.
    router: the one that starts it, by a name of that router's life.
    start_timeout_s: seconds that router gives it to load. orphan_timeout_s: seconds without a router after
    which it ends itself.
    secret: the cluster's; shown by every session and pair.
    """

    deployment: str = "twinpool"
    worker_id: str
    pool: Pool
    incarnation: str
    model_folder: str
    model_digest: str = ""
    dtype: str
    threads: int
    shares_cores: bool = False
    engine: EngineConfig
    handoff: HandoffConfig
    host: str = "127.0.0.1"
    log_level: str = "warning"
    log_format: str = "text"
    router: str = ""
    start_timeout_s: float = 120.0
    orphan_timeout_s: float = 60.0
    secret: str = field(repr=False)

    @property
    def actor_name(self) -> str:
        """The name of the actor that runs it, under Ray."""
        return f"{self.deployment}/{self.incarnation}"

    @property
    def fingerprint(self) -> str:
        """Equal for workers of which one may take the other's place: same weights, formats and settings.

        A setting at its default does not count: one that a newer version adds must not tell older workers
        apart. Nor does Twinpool's version; see `twinpool.protocol`.
        """
        decides = _chosen(self)
        for name in _DECIDES_NOTHING:
            decides.pop(name, None)
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _chosen(settings: Any) -> dict[str, Any]:
    """Whatever is not at its default, with what is inside."""
    values = {each.name: (getattr(settings, each.name), each.default) for each in fields(settings)}
    return {
        name: _chosen(value) if is_dataclass(value) else value
        for name, (value, default) in values.items()
        if value != default
    }
