"""What `status` and the gauges see: the scheduler's fleet, and the workers that are not up."""

from __future__ import annotations

from router.dispatch.seats import Roster, Seat
from router.scheduling.fleet import Fleet, Worker
from router.scheduling.scheduler import Scheduler
from twinpool.session.messages import LoadReport
from twinpool.types import Pool, WorkerState
from twinpool.views import PairView, Snapshot, WorkerView


def take_snapshot(model: str, serving: bool, scheduler: Scheduler, roster: Roster) -> Snapshot:
    """The whole system now."""
    fleet = scheduler.fleet
    return Snapshot(
        model=model,
        serving=serving,
        queue_requests=scheduler.queue.num_requests,
        queue_tokens=scheduler.queue.num_tokens,
        num_requests=scheduler.num_requests,
        workers=tuple(_view(seat, fleet) for seat in roster.seats.values()),
        pairs=tuple(
            PairView(pair.prefill.worker_id, pair.decode.worker_id, pair.transport, pair.proven)
            for pair in fleet.pairs()
        ),
        handoffs_in_flight=sum(worker.load.handoffs for worker in fleet.pool(Pool.DECODE)),
        target_workers={pool: len(roster.wanted(pool)) for pool in Pool},
    )


def _view(seat: Seat, fleet: Fleet) -> WorkerView:
    worker = fleet.worker(seat.worker_id)
    if worker is None:
        empty = LoadReport()
        return WorkerView(seat.worker_id, seat.pool, seat.state, 0, seat.node, "", 0, empty, seat.reason)
    return WorkerView(
        id=seat.worker_id,
        pool=seat.pool,
        state=_state(worker, fleet),
        pid=worker.hello.pid,
        node=seat.node,
        incarnation=worker.incarnation,
        blocks_total=worker.hello.blocks_total,
        load=worker.load,
        cpus=worker.hello.cpus,
        cpus_usable=worker.hello.cpus_usable,
        kernels=worker.hello.kernels,
    )


def _state(worker: Worker, fleet: Fleet) -> WorkerState:
    if worker.draining:
        return WorkerState.DRAINING
    pairs = (pair for pair in fleet.pairs() if worker in (pair.prefill, pair.decode))
    return WorkerState.READY if any(pair.proven for pair in pairs) else WorkerState.WARMING
