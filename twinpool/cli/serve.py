"""`twinpool serve`: model, Ray cluster, system, signals. Prints one `ready` line on stdout.

prepare the model, once ─► start or join Ray ─► start the system (`twinpool.serving.system`) ─► ready ─►
a signal to stop: drain (a second one: end the streams at once) ─► end all

A signal that comes before all is ready ends what has been started by then, once it can be ended. On a
cluster that was joined, SIGTERM and SIGHUP leave the workers to the next router of the same deployment, as
an upgrade of the router wants; SIGINT ends them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from router.pools.launcher import Leave
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.cli.child import run_child
from twinpool.cli.exits import Exit, code_of, complain_of
from twinpool.cli.listening import require_free_ports
from twinpool.cli.signals import StopSignals, stop_signals
from twinpool.cli.standard_streams import Say, only_results_on_stdout
from twinpool.config import ServeConfig
from twinpool.errors import InternalError, TwinpoolError
from twinpool.logs import set_up_logs
from twinpool.prepare.pull import prepared_path
from twinpool.python_command import python_command
from twinpool.serving.cluster import Cluster, ray_cluster
from twinpool.serving.system import ServingSystem, Steps
from twinpool.serving.worker_output import json_worker_output

log = logging.getLogger(__name__)
STOPPED_EARLY = "stopped before it was ready"


def run(config: ServeConfig) -> int:
    """Serve until a signal asks to stop; the exit code, once the reason of a failure has been said."""
    set_up_logs(config.log_level, config.log_format)
    as_json = config.log_format == "json"
    try:
        return _run(config, _LoggedSteps() if as_json else _Steps())
    except TwinpoolError as error:
        if not as_json:
            return complain_of(error)
        log.critical("%s", error, extra={"error": error.reason})
        return code_of(error)


def _run(config: ServeConfig, steps: Steps) -> int:
    require_free_ports(config)
    with stop_signals() as signals:
        folder, code = _prepared(config, steps, signals)
        if folder is None:
            return code
        model = PreparedModel.load(folder)
        steps(f"model {model.name} is prepared")
        with (
            only_results_on_stdout() as say,
            json_worker_output() if config.log_format == "json" else nullcontext(),
            ray_cluster(config.ray_address, config.prefill + config.decode) as ray,
        ):
            steps("Ray is up" if ray.is_local else f"joined Ray at {config.ray_address}")
            code = asyncio.run(_Serving(config, steps, say, signals).serve(model, ray))
        steps("stopped")
    return code


class _Steps:
    """Tells each step of the start on stderr, with the seconds since the command began."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    def __call__(self, step: str) -> None:
        print(f"[{time.monotonic() - self._started_at:5.1f} s] {step}", file=sys.stderr, flush=True)


class _LoggedSteps:
    """Tells each step as a line of the log, whatever its level."""

    def __init__(self) -> None:
        self._log = logging.getLogger(f"{__name__}.steps")
        self._log.setLevel(logging.INFO)

    def __call__(self, step: str) -> None:
        self._log.info("%s", step)


def _prepared(config: ServeConfig, steps: Steps, signals: StopSignals) -> tuple[Path | None, int]:
    """The prepared folder, or None and the exit code of a pull that has said why it failed.

    The model is converted in a process of its own, since that loads torch and transformers.
    """
    folder = prepared_path(config.model, config.cache_dir)
    if folder is not None:
        return folder, Exit.DONE
    steps(f"preparing model {config.model}, once")
    cache = ["--cache-dir", str(config.cache_dir)] if config.cache_dir else []
    command = python_command("twinpool.cli.app", "pull", config.model, *cache)
    code = run_child(command, signals, steps if config.log_format == "json" else _print)
    if signals.received:
        steps(STOPPED_EARLY)
        return None, Exit.INTERRUPTED
    return prepared_path(config.model, config.cache_dir), code or Exit.MODEL


def _print(line: str) -> None:
    print(line, file=sys.stderr)


class _Serving:
    """One run of the system, from start to signal. say: prints on the real stdout."""

    def __init__(self, config: ServeConfig, steps: Steps, say: Say, signals: StopSignals) -> None:
        self._config = config
        self._steps = steps
        self._say = say
        self._signals = signals
        self._stop = asyncio.Event()

    async def serve(self, model: PreparedModel, cluster: Cluster) -> int:
        """The exit code: INTERRUPTED if the signal came before all was ready."""
        if self._signals.received:
            self._steps(STOPPED_EARLY)
            return Exit.INTERRUPTED
        system = ServingSystem(self._config, model, cluster, self._steps)
        loop = asyncio.get_running_loop()

        def tell(number: signal.Signals) -> None:
            leaves_workers = number is not signal.SIGINT and not cluster.is_local
            loop.call_soon_threadsafe(self._signalled, system, leaves_workers)

        with self._signals.told_to(tell):
            return await self._serve(system)

    async def _serve(self, system: ServingSystem) -> int:
        async with system.running():
            if not await system.wait_until_ready(self._stop):
                self._steps(STOPPED_EARLY)
                return Exit.INTERRUPTED
            self._say(system.ready_line())
            await self._until_stopped(system)
            streams, grace_s = system.num_requests, self._config.router.grace_s
            self._steps(f"stopping: {streams} streams may finish within {grace_s:g} s")
            if system.leave is Leave.ALL:
                wait_s = self._config.router.orphan_timeout_s
                self._steps(f"the workers stay: another router has {wait_s:g} s to take them over")
        return Exit.DONE

    def _signalled(self, system: ServingSystem, leaves_workers: bool) -> None:
        if self._stop.is_set():
            self._steps("stopping at once")
            system.hurry()
        system.leave = Leave.ALL if leaves_workers else Leave.NONE
        self._stop.set()

    async def _until_stopped(self, system: ServingSystem) -> None:
        for ending in (system.broken, system.taken_over):
            ending.add_done_callback(lambda _: self._stop.set())
        await self._stop.wait()
        if system.broken.done():
            raise InternalError(f"the router is broken: {system.broken.result()!r}")
        if system.taken_over.done():
            self._steps(system.taken_over.result())
