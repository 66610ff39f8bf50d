"""What a router does around its scheduler: tells it what is heard, carries out its words, sends canaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from hypothesis import event as seen

from router.scheduling.commands import Drained, Emit, Fail, ProbePair, ReplaceWorker, Send
from router.scheduling.events import (
    Arrived,
    Cancelled,
    PairFailed,
    PairProven,
    SchedulerEvent,
    Tick,
    WorkerDown,
    WorkerSaid,
)
from router.scheduling.happenings import HandoffEnded, MoveEnded, SetBack
from router.scheduling.phases import Setback
from router.scheduling.scheduler import Scheduler, SchedulerLimits
from router.scheduling.values import Request
from tests.support.simulation.fleet_witness import FleetWitness
from tests.support.simulation.witness import Answer, Watched
from tests.support.simulation.workers import Action, Down, Stream, Worker
from twinpool.sampling.params import SamplingParams
from twinpool.session import messages as m

CANARY_TIMEOUT_S = 30.0
WITH_LOAD = (m.Granted, m.Refused, m.PrefillEnded, m.Released, m.StepDone, m.RowsPaused)
OF_ATTEMPTS = (*WITH_LOAD, m.FirstToken, m.Written, m.RowMoved, m.MoveFailed)


class SimulatedRouter:
    """The scheduler's surroundings; every word it says is checked.

    workers: those in seats, by id. watched: requests, by name. shaken: a loss may not have come through
    everywhere yet. probes: canaries to send. canaries: those on their way, by name. proofs: what came of
    them, which the scheduler does not know yet. heard: what workers may say once more.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        limits: SchedulerLimits,
        workers: Mapping[str, Worker],
        decodes: Container[str],
        clock: Callable[[], float],
    ) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self.workers = workers
        self.clock = clock
        self.watched: dict[str, Watched] = {}
        self.witness = FleetWitness(scheduler, limits, workers, decodes, self.watched)
        self.shaken = False
        self.probes: deque[ProbePair] = deque()
        self.canaries: dict[str, ProbePair] = {}
        self.proofs: deque[PairProven | PairFailed] = deque()
        self.heard: deque[WorkerSaid] = deque(maxlen=8)

    # Clients.

    def submit(self, request: Request, answer: Answer) -> None:
        self.watched[request.request_id] = Watched(request, answer, self.clock(), may_fail=self.shaken)
        self.feed(Arrived(request))

    def leave(self, request_id: str) -> None:
        self.watched[request_id].left = True
        self.canaries.pop(request_id, None)
        self.feed(Cancelled(request_id))

    def waiting_clients(self) -> list[str]:
        return [
            name
            for name, watched in self.watched.items()
            if not (watched.ended or watched.left or watched.is_canary)
        ]

    def shake(self) -> None:
        """Something is lost: it may cost all open requests, and those that come before it is known."""
        self.shaken = True
        for watched in self.watched.values():
            watched.may_fail = True

    # What it does next.

    def actions(self) -> list[Action]:
        actions: list[Action] = []
        if self.probes:
            actions.append(self.send_canary)
        if self.proofs:
            actions.append(lambda: self.feed(self.proofs.popleft()))
        return actions

    def tick(self) -> None:
        now = self.clock()
        self.witness.tick(now)
        self.feed(Tick())
        assert not self.witness.placed_on_still(), "streams hang on a worker that stands still"
        for name in self.waiting_clients():
            watched = self.watched[name]
            assert now < watched.arrived_at + (watched.request.timeout_s or self.limits.longest_request_s)
        for request_id in list(self.canaries):
            if now - self.watched[request_id].arrived_at >= CANARY_TIMEOUT_S:
                self.leave(request_id)

    def hear_from(self, worker: Worker, stream: Stream) -> None:
        """The next event that the worker has said over one stream; the end of one is that of both."""
        event = stream.events.popleft()
        if isinstance(event, Down):
            worker.control.events.clear()
            worker.work.events.clear()
            self.witness.down(worker)
            self.feed(WorkerDown(worker.worker_id, worker.incarnation, "lost"))
            return
        said = WorkerSaid(worker.worker_id, worker.incarnation, event)
        if isinstance(event, OF_ATTEMPTS):
            self.heard.append(said)
        self.feed(said)

    def hear_again(self, said: WorkerSaid) -> None:
        """A message comes once more, late; its counts are those the router has."""
        worker = self.scheduler.fleet.worker(said.worker_id)
        message = said.message
        if isinstance(message, WITH_LOAD) and worker is not None:
            message = replace(message, load=worker.load)
        self.feed(replace(said, message=message))

    def send_canary(self) -> None:
        probe = self.probes.popleft()
        number = len(self.watched) + 1
        name = f"r{number}"
        self.canaries[name] = probe
        params = SamplingParams(2, ignore_eos=True)
        self.submit(
            Request(name, (number,), params, (probe.prefill_id, probe.decode_id)), Answer(number, None)
        )

    # What the scheduler says.

    def feed(self, event: SchedulerEvent) -> None:
        now = self.clock()
        placed: list[Watched] = []
        self.witness.hear(event, now)
        candidates = self.witness.may_make_room(event)
        overdue = self.witness.overdue(now)
        for command in self.scheduler.handle(event, now):
            match command:
                case Send(worker_id, worker_command):
                    self.send(self.workers[worker_id], worker_command, placed)
                case Emit(request_id, output):
                    assert output.ending is None or request_id not in self.witness.handing_off
                    self.watched[request_id].hear(output, now)
                    if output.ending is not None and request_id in self.canaries:
                        probe = self.canaries.pop(request_id)
                        self.proofs.append(PairProven(probe.prefill, probe.decode))
                case Fail(request_id, error):
                    assert request_id not in self.witness.handing_off
                    self.watched[request_id].fail(error, now, self.limits.most_attempts)
                    if request_id in self.canaries:
                        failed = self.canaries.pop(request_id)
                        self.proofs.append(PairFailed(failed.prefill, failed.decode))
                case SetBack(request_id, setback, resumed):
                    if setback is Setback.PREEMPTED:
                        assert candidates.pop() == request_id
                        candidates.clear()
                    assert setback is not Setback.DRAINED or self.witness.draining
                    self.watched[request_id].set_back(setback, self.limits.most_attempts, resumed=resumed)
                case ProbePair():
                    assert not {command.prefill, command.decode} & set(self.witness.draining)
                    self.probes.append(command)
                case HandoffEnded():
                    self.witness.handoff_ended(command)
                case MoveEnded(outcome):
                    seen(f"a row's move: {outcome}")
                    self.witness.num_moving -= 1
                case Drained(worker_id, incarnation):
                    self.witness.check_drained(self.workers[worker_id], incarnation)
                    self.workers[worker_id].die()
                case ReplaceWorker():
                    self.witness.check_replaced(command, now)
                    self.shake()
                    self.workers[command.worker_id].die()
        self.witness.check_order(placed, now)
        self.witness.check_rows_failed()
        self.witness.check_held(overdue, placed, now)

    def send(self, worker: Worker, command: m.Command, placed: list[Watched]) -> None:
        self.witness.check_told(worker, command, placed, self.clock())
        worker.send(command)
