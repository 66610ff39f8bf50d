"""The scheduler among simulated workers: what can happen next, what goes wrong, and how time passes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from router.scheduling.events import Drain, WorkerGone, WorkerUp
from router.scheduling.ids import Ids
from router.scheduling.scheduler import Scheduler, SchedulerLimits
from tests.support.simulation.decode import SimulatedDecode
from tests.support.simulation.loop import Poisoned
from tests.support.simulation.prefill import SimulatedPrefill
from tests.support.simulation.router import SimulatedRouter
from tests.support.simulation.workers import Action, Worker, World
from twinpool.session import messages as m
from twinpool.types import Pool

LIMITS = SchedulerLimits(
    most_prompts=2,
    most_rows=3,
    overtake_s=1.0,
    reservation_ttl_s=4.0,
    most_attempts=2,
    longest_request_s=3600.0,
    stuck_after_s=5.0,
)
MOST_ROUNDS = 400
MOST_ACTIONS = 5000
TICK_SHARE = 0.2
TICK_S = 0.5
DRAIN_MARGIN_S = 5.0
"""After the grace period, until a worker has let go of what was set back, if nothing stands still."""
MOST_OF_A_POOL = 4
FAULTS = ["dies", "dies", "loses its session", "loses its connections", "stops", "fails a call"]
SECONDS = st.sampled_from([0.0, 0.0, 0.25, 1.0, 2.0, 4.0])
GRACE_S = st.sampled_from([10.0, 3.0, 1.0, 0.0])


class SimulatedSystem:
    """Workers, a router and a clock; whoever plays with it says what happens when.

    workers: those in seats, by id. lives: all that ever were. decodes: those of decode workers, by
    incarnation.
    """

    def __init__(
        self, num_blocks: int = 6, *, sockets: bool = True, most_attempts: int = LIMITS.most_attempts
    ) -> None:
        limits = replace(LIMITS, most_attempts=most_attempts)
        self.scheduler = Scheduler(limits, Ids("simulated"))
        self.now = 0.0
        self.workers: dict[str, Worker] = {}
        self.lives: list[Worker] = []
        self.decodes: dict[str, SimulatedDecode] = {}
        self.world = World(num_blocks, self.model, lambda: self.now, sockets, self.decodes)
        self.router = SimulatedRouter(self.scheduler, limits, self.workers, self.decodes, lambda: self.now)

    def start(self, prefill: int, decode: int, *, ready: bool) -> None:
        """Numbers of workers; ready: all of them serve."""
        self.router.tick()
        for worker_id in (*(f"p{n}" for n in range(prefill)), *(f"d{n}" for n in range(decode))):
            self.bring_up(worker_id)
        if ready:
            self.settle()

    def end(self) -> None:
        """Nothing more goes wrong: every request ends, and then nobody holds anything."""
        self.settle()
        assert not self.router.waiting_clients()
        assert not self.scheduler.requests
        assert not self.scheduler.queue
        assert not self.scheduler.num_attempts
        assert self.scheduler.fleet.serves()
        assert self.router.witness.num_moving == 0
        for worker in self.scheduler.fleet.workers():
            assert not worker.charged
            assert not worker.leaving
            assert self.workers[worker.worker_id].idle
            assert replace(worker.load, progress=0) == m.LoadReport(blocks_free=self.world.num_blocks)

    def model(self, prompt: int, position: int) -> int:
        watched = self.router.watched[f"r{prompt}"]
        index = position - len(watched.request.prompt_ids)
        if index == watched.answer.poison_at:
            raise Poisoned
        return prompt if index < 0 else watched.answer.token(index)

    # What holds always.

    def check_what_holds_always(self) -> None:
        self.every_open_request_is_known_and_no_other()
        self.no_prefill_worker_is_given_more_than_it_holds()
        self.no_decode_worker_holds_more_than_it_has()

    def every_open_request_is_known_and_no_other(self) -> None:
        watched = self.router.watched
        expected = {name for name, each in watched.items() if not each.ended and not each.left}
        assert set(self.scheduler.requests) == expected

    def no_prefill_worker_is_given_more_than_it_holds(self) -> None:
        for worker in self.scheduler.fleet.pool(Pool.PREFILL):
            assert len(worker.charged) <= LIMITS.most_prompts
            assert worker.blocks_free >= 0

    def no_decode_worker_holds_more_than_it_has(self) -> None:
        for decode in self.decodes.values():
            load = decode.custody.load()
            assert 0 <= load.blocks_free + load.blocks_quarantined <= self.world.num_blocks
            assert load.running + load.waiting <= self.world.num_blocks

    # What happens, and when.

    def actions(self, stalled: Worker | None = None) -> list[Action]:
        """All that can happen next."""
        moving = [worker for worker in self.lives if worker is not stalled]
        actions = [action for worker in moving for action in worker.actions()]
        actions += [
            partial(self.router.hear_from, worker, stream)
            for worker in moving
            for stream in (worker.control, worker.work)
            if stream.events
        ]
        return actions + self.router.actions()

    def act(
        self,
        order: random.Random,
        *,
        stalled: Worker | None = None,
        repeats: bool = False,
        ticks: bool = False,
    ) -> None:
        """Something happens; now and then a message comes again, or the clock ticks, if so asked."""
        if actions := self.actions(stalled):
            order.choice(actions)()
        if repeats and self.router.heard and order.random() < 0.2:
            self.router.hear_again(order.choice(self.router.heard))
        if ticks and order.random() < TICK_SHARE:
            self.router.tick()

    def let_time_pass(self, seconds: float, *, at_once: bool) -> None:
        step_s = seconds if at_once else min(seconds, TICK_S)
        for _ in range(round(seconds / step_s) if seconds else 1):
            self.now += step_s
            for worker in self.lives:
                if worker.alive and seconds:
                    worker.time_passes()
            self.router.tick()

    def settle(self) -> None:
        """Everything moves until nothing moves any more."""
        undisturbed_since = self.now
        for _ in range(MOST_ROUNDS):
            self.replace_lost_workers()
            for turn in range(MOST_ACTIONS):
                if not (actions := self.actions()):
                    break
                actions[turn % len(actions)]()
                if turn % 10 == 0:
                    self.router.tick()
            else:
                raise AssertionError("it goes round in circles")
            if self.is_settled():
                return
            if any(worker.stopped for worker in self.workers.values()):
                undisturbed_since = self.now
            for worker in self.scheduler.fleet.workers():
                grace_ends = self.router.witness.draining.get(worker.incarnation, self.now)
                until = max(grace_ends, undisturbed_since)
                assert self.now <= until + DRAIN_MARGIN_S, "it does not get empty"
            self.let_time_pass(TICK_S, at_once=True)
        raise AssertionError(f"still not settled: {list(self.scheduler.requests.values())}")

    def is_settled(self) -> bool:
        if self.lost_workers() or any(worker.stopped for worker in self.workers.values()):
            return False
        fleet = self.scheduler.fleet
        drained = not any(worker.draining for worker in fleet.workers())
        return not self.scheduler.requests and fleet.serves() and drained

    # Workers come and go.

    def some_worker(self, choice: int) -> Worker:
        workers = list(self.workers.values())
        return workers[choice % len(workers)]

    def bring_up(self, worker_id: str) -> None:
        incarnation = f"{worker_id}-{len(self.lives)}"
        worker: Worker
        if worker_id.startswith("p"):
            worker = SimulatedPrefill(worker_id, incarnation, self.world)
        else:
            worker = self.decodes[incarnation] = SimulatedDecode(worker_id, incarnation, self.world)
        self.workers[worker_id] = worker
        self.lives.append(worker)
        self.router.witness.up(worker, self.now)
        self.router.feed(WorkerUp(worker_id, worker.hello()))

    def grow(self, pool: Pool) -> None:
        """A pool gets one more worker, if it has room."""
        names = (f"{pool[0]}{number}" for number in range(MOST_OF_A_POOL))
        if name := next((name for name in names if name not in self.workers), None):
            self.bring_up(name)

    def tell_to_drain(self, worker: Worker, grace_s: float, *, retires: bool) -> None:
        if self.scheduler.fleet.worker(worker.worker_id) is None:
            return
        worker.retired = worker.retired or (retires and len(self.staying(worker.pool)) > 1)
        self.router.witness.drain(worker, self.now + grace_s)
        self.router.feed(Drain(worker.worker_id, grace_s))

    def staying(self, pool: Pool) -> list[Worker]:
        """Those whose seats are filled again."""
        return [worker for worker in self.workers.values() if worker.pool is pool and not worker.retired]

    def lost_workers(self) -> list[Worker]:
        """Those the router has let go of."""
        fleet = self.scheduler.fleet
        return [worker for worker in self.workers.values() if fleet.worker(worker.worker_id) is None]

    def replace_lost_workers(self) -> None:
        for worker in self.lost_workers():
            worker.die()
            self.router.feed(WorkerGone(worker.pool, worker.incarnation))
            if worker.retired:
                del self.workers[worker.worker_id]
            else:
                self.bring_up(worker.worker_id)

    # What goes wrong.

    def strike(self, worker: Worker, what: str) -> None:
        self.router.shake()
        match what:
            case "dies":
                worker.die()
            case "loses its session":
                worker.lose_session()
            case "stops":
                worker.stopped = True
            case "fails a call":
                worker.engine.fails_next = True
            case _:
                worker.senders.lose_all()

    def see_whether_still_shaken(self) -> None:
        """Losses have come through once nothing is on its way and nothing is about to fail."""
        about_to = any(worker.stopped or worker.engine.fails_next for worker in self.workers.values())
        self.router.shaken = self.router.shaken and (about_to or bool(self.actions()))
