"""`twinpool serve`: model, Ray cluster, system, signals. Prints one `ready` line on stdout.

prepare the model, once ─► start or join Ray ─► start the system (`twinpool.cli.system`) ─► ready ─►
SIGINT or SIGTERM: drain ─► end all
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

from twinpool.cli.cluster import Cluster, ray_cluster
from twinpool.cli.system import ServingSystem
from twinpool.config import ServeConfig
from twinpool.errors import StartFailed
from twinpool.model.config import PreparedModel
from twinpool.model.pull import prepared_path


def run(config: ServeConfig) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. Raises StartFailed and the model's errors."""
    steps = _Steps()
    logging.basicConfig(
        level=config.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    model = PreparedModel.load(_prepared(config, steps))
    steps(f"model {model.name} is prepared")
    with ray_cluster(config.ray_address, config.prefill + config.decode) as cluster:
        steps("Ray is up" if cluster.is_local else f"joined Ray at {config.ray_address}")
        asyncio.run(_serve(config, model, cluster, steps))
    return 0


class _Steps:
    """Tells each step of the start on stderr, with the seconds since the command began."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    def __call__(self, step: str) -> None:
        print(f"[{time.monotonic() - self._started_at:5.1f} s] {step}", file=sys.stderr, flush=True)


def _prepared(config: ServeConfig, steps: _Steps) -> Path:
    """The prepared folder; converted in a process of its own, since that loads torch and transformers."""
    folder = prepared_path(config.model, config.cache_dir)
    if folder is None:
        steps(f"preparing model {config.model}, once")
        cache = ["--cache-dir", str(config.cache_dir)] if config.cache_dir else []
        command = [sys.executable, "-m", "twinpool.cli.app", "pull", config.model, *cache]
        subprocess.run(command, stdout=sys.stderr, check=False)  # noqa: S603 (our own command)
        folder = prepared_path(config.model, config.cache_dir)
    if folder is None:
        raise StartFailed(f"model {config.model} could not be prepared")
    return folder


async def _serve(config: ServeConfig, model: PreparedModel, cluster: Cluster, steps: _Steps) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ServingSystem(config, model, cluster, steps).running() as system:
        if await system.wait_until_ready(stop):
            print(system.ready_line(), flush=True)
            await stop.wait()
            steps("stopping: running streams may finish")
