"""One run of `twinpool bench serve`: connect, draw prompts, warm up, send."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from random import Random

from twinpool.bench.arrivals import arrivals, traced_arrivals
from twinpool.bench.load import Load
from twinpool.bench.prompts import Prompt
from twinpool.cli.bench_serve_options import DataOptions, ServerOptions, TrafficOptions
from twinpool.cli.bench_serve_prompts import prompts_of
from twinpool.cli.bench_serve_target import Target, opened
from twinpool.cli.progress import shown_count
from twinpool.cli.signals import cancelling
from twinpool.errors import TwinpoolError


class Run:
    """load: None until the first request is due; what it has stays readable however the run ends."""

    def __init__(
        self, server: ServerOptions, traffic: TrafficOptions, data: DataOptions, *, shows: bool
    ) -> None:
        self._server = server
        self._traffic = traffic
        self._data = data
        self._shows = shows
        self.load: Load | None = None
        self.model = ""

    def execute(self) -> bool:
        """Whether it ran to its end; a signal that asks to stop cuts it short.

        Raises TwinpoolError where nobody answers or warming up fails, ConfigError for bad prompts.
        """
        try:
            asyncio.run(self._execute())
        except (asyncio.CancelledError, KeyboardInterrupt):
            return False
        return True

    async def _execute(self) -> None:
        with cancelling():
            await self._send()

    async def _send(self) -> None:
        async with opened(self._server, self._traffic) as target:
            self.model = target.model
            prompts = await prompts_of(self._data, target, self._traffic.num_prompts, self._traffic.seed)
            await self._warm_up(target)
            load = self._load_of(target, prompts, self._due_s(prompts))
            with shown_count(len(prompts), "requests", shows=self._shows) as advance:
                self.load = load
                await load.run(advance)

    async def _warm_up(self, target: Target) -> None:
        """With prompts of another seed, so that no cache of prefixes knows those that count."""
        if not self._traffic.num_warmups:
            return
        prompts = await prompts_of(self._data, target, self._traffic.num_warmups, self._traffic.seed + 1)
        load = self._load_of(target, prompts, [0.0] * len(prompts))
        with shown_count(len(prompts), "warm-ups", shows=self._shows) as advance:
            await load.run(advance)
        errors = [record.error for record in load.records if record.error]
        if errors:
            raise TwinpoolError(f"{len(errors)} of {len(prompts)} warm-ups failed: {errors[0]}")

    def _due_s(self, prompts: Sequence[Prompt]) -> Sequence[float]:
        traffic = self._traffic
        at_s = [prompt.at_s for prompt in prompts if prompt.at_s is not None]
        if at_s and math.isinf(traffic.request_rate):
            return traced_arrivals(at_s, self._data.trace_speed)
        return arrivals(len(prompts), traffic.request_rate, traffic.burstiness, Random(traffic.seed))

    def _load_of(self, target: Target, prompts: Sequence[Prompt], due_s: Sequence[float]) -> Load:
        return Load(
            target.sender,
            prompts,
            due_s,
            max_concurrency=self._traffic.max_concurrency,
            timeout_s=self._server.timeout,
        )
