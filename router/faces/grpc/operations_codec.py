"""Where the Operations service's protobuf messages become dataclasses and back."""

from __future__ import annotations

from dataclasses import asdict

from twinpool.errors import InvalidRequest
from twinpool.types import Pool, WorkerState
from twinpool.v1 import operations_pb2 as pb
from twinpool.v1 import types_pb2
from twinpool.views import Hop, PairCheck, PairView, Snapshot, Verification, VerifiedWorker, WorkerView
from twinpool.wire import numbers

_POOLS = numbers(Pool, types_pb2.Pool)
_WORKER_STATES = numbers(WorkerState, pb.WorkerState)
_HOPS = numbers(Hop, pb.Hop, zero=Hop.NONE)


def interval_s(message: pb.WatchStatusRequest) -> float:
    """Absent means one second."""
    return message.interval_s if message.HasField("interval_s") else 1.0


def pool(value: types_pb2.Pool.ValueType, field: str = "pool") -> Pool:
    """Read a pool. Raises InvalidRequest."""
    for each, number in _POOLS.items():
        if number == value:
            return each
    raise InvalidRequest(field, f"{field} must be prefill or decode")


def restarted(message: pb.RestartWorkersRequest) -> Pool | str:
    """The pool, or the one worker, to restart. Raises InvalidRequest."""
    match message.WhichOneof("which"):
        case "worker_id":
            return message.worker_id
        case "pool":
            return pool(message.pool)
        case _:
            raise InvalidRequest("which", "name a worker or a pool to restart")


def status(snapshot: Snapshot) -> pb.Status:
    """Write the whole system's state."""
    return pb.Status(
        model=snapshot.model,
        serving=snapshot.serving,
        queue=pb.QueueStatus(requests=snapshot.queue_requests, tokens=snapshot.queue_tokens),
        requests=snapshot.num_requests,
        workers=[_worker(worker) for worker in snapshot.workers],
        pairs=[_pair(pair) for pair in snapshot.pairs],
        handoffs_in_flight=snapshot.handoffs_in_flight,
        targets=[
            pb.PoolTarget(pool=_POOLS[each], size=size, most_running=snapshot.most_running.get(each, 0))
            for each, size in snapshot.target_workers.items()
        ],
        totals=pb.Totals(**asdict(snapshot.totals)),
    )


def _worker(view: WorkerView) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        id=view.id,
        pool=_POOLS[view.pool],
        state=_WORKER_STATES[view.state],
        pid=view.pid,
        node=view.node,
        incarnation=view.incarnation,
        running=view.load.running,
        waiting=view.load.waiting,
        blocks_used=view.blocks_used,
        blocks_cached=view.load.blocks_cached,
        blocks_total=view.blocks_total,
        blocks_quarantined=view.load.blocks_quarantined,
        reason=view.reason,
        cpus=view.cpus,
        cpus_usable=view.cpus_usable,
        kernels=view.kernels,
    )


def _pair(view: PairView) -> pb.PairStatus:
    return pb.PairStatus(prefill=view.prefill, decode=view.decode, transport=view.transport, ready=view.ready)


def pair_check(check: PairCheck) -> pb.CheckPairsResponse:
    """Write what one canary found."""
    timing = check.timing
    return pb.CheckPairsResponse(
        pair=_pair(check.pair),
        failed_hop=_HOPS[check.failed_hop],
        detail=check.detail,
        queue_s=timing.queue_s,
        prefill_s=timing.prefill_s,
        handoff_wait_s=timing.handoff_wait_s,
        decode_s=timing.decode_s,
    )


def verification(found: Verification) -> pb.VerifyResponse:
    """Write what a verification found."""
    return pb.VerifyResponse(
        at_rest=found.at_rest, workers=[_verified_worker(worker) for worker in found.workers]
    )


def _verified_worker(worker: VerifiedWorker) -> pb.WorkerVerification:
    blocks = worker.blocks
    return pb.WorkerVerification(
        id=worker.worker_id,
        pool=_POOLS[worker.pool],
        incarnation=worker.incarnation,
        answered=worker.answered,
        blocks_total=worker.blocks_total,
        blocks=pb.BlockUsage(
            free=blocks.free,
            reserved=blocks.reserved,
            rows=blocks.rows,
            cached=blocks.cached,
            quarantined=blocks.quarantined,
        ),
        held=[
            pb.BlockHolding(holder=held.holder, stage=held.stage, blocks=held.num_blocks, age_s=held.age_s)
            for held in worker.held
        ],
        problems=worker.problems,
    )
