"""Protobuf messages of the operations service to client values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from twinpool.client.status import PairCheck, PairStatus, QueueStatus, Status, WorkerStatus
from twinpool.client.verification import BlockHolding, BlockUsage, Verification, VerifiedWorker
from twinpool.errors import InternalError
from twinpool.totals import Totals
from twinpool.types import Pool, Timing, WorkerState
from twinpool.v1 import operations_pb2 as pb
from twinpool.v1 import types_pb2
from twinpool.wire import numbers

_NUMBERS = numbers(Pool, types_pb2.Pool)
_POOLS = {number: pool for pool, number in _NUMBERS.items()}
_STATES = {number: state for state, number in numbers(WorkerState, pb.WorkerState).items()}
_HOPS: Mapping[int, str | None] = {
    number: name.removeprefix("HOP_").lower() for name, number in pb.Hop.items()
} | {pb.HOP_UNSPECIFIED: None}


def status_from(response: pb.GetStatusResponse | pb.WatchStatusResponse) -> Status:
    """The state. Raises InternalError for kinds that this client does not know."""
    status = response.status
    return Status(
        model=status.model,
        serving=status.serving,
        queue=QueueStatus(status.queue.requests, status.queue.tokens),
        requests=status.requests,
        workers=tuple(_worker_from(worker) for worker in status.workers),
        pairs=tuple(_pair_from(pair) for pair in status.pairs),
        handoffs_in_flight=status.handoffs_in_flight,
        targets={_POOLS[target.pool]: target.size for target in status.targets if target.pool in _POOLS},
        most_running={
            _POOLS[target.pool]: target.most_running for target in status.targets if target.pool in _POOLS
        },
        totals=Totals(**{field.name: getattr(status.totals, field.name) for field in fields(Totals)}),
    )


def size_to_pb(pool: Pool, size: int) -> pb.SetPoolSizeRequest:
    """Ask for a pool's size."""
    return pb.SetPoolSizeRequest(pool=_NUMBERS[pool], size=size)


def restart_to_pb(which: Pool | str) -> pb.RestartWorkersRequest:
    """Ask for new lives of a pool's workers, or of one."""
    if isinstance(which, Pool):
        return pb.RestartWorkersRequest(pool=_NUMBERS[which])
    return pb.RestartWorkersRequest(worker_id=which)


def restarted_from(response: pb.RestartWorkersResponse) -> tuple[str, str]:
    """A worker's id and its new incarnation."""
    return response.worker_id, response.incarnation


def check_from(response: pb.CheckPairsResponse) -> PairCheck:
    """One pair's result. Raises InternalError for a hop that this client does not know."""
    if response.failed_hop not in _HOPS:
        raise InternalError(f"hop {response.failed_hop} is unknown to this client")
    return PairCheck(
        pair=_pair_from(response.pair),
        failed_hop=_HOPS[response.failed_hop],
        detail=response.detail,
        timing=Timing(response.queue_s, response.prefill_s, response.handoff_wait_s, response.decode_s),
    )


def verification_from(response: pb.VerifyResponse) -> Verification:
    """What a verification found. Raises InternalError for a pool that this client does not know."""
    return Verification(response.at_rest, tuple(_verified_from(worker) for worker in response.workers))


def _pair_from(pair: pb.PairStatus) -> PairStatus:
    return PairStatus(pair.prefill, pair.decode, pair.transport, pair.ready)


def _worker_from(worker: pb.WorkerStatus) -> WorkerStatus:
    if worker.pool not in _POOLS or worker.state not in _STATES:
        raise InternalError(f"worker {worker.id} has a pool or a state unknown to this client")
    return WorkerStatus(
        id=worker.id,
        pool=_POOLS[worker.pool],
        state=_STATES[worker.state],
        pid=worker.pid,
        node=worker.node,
        incarnation=worker.incarnation,
        running=worker.running,
        waiting=worker.waiting,
        blocks_used=worker.blocks_used,
        blocks_cached=worker.blocks_cached,
        blocks_total=worker.blocks_total,
        blocks_quarantined=worker.blocks_quarantined,
        reason=worker.reason,
        cpus=worker.cpus,
        cpus_usable=worker.cpus_usable,
        kernels=worker.kernels,
    )


def _verified_from(worker: pb.WorkerVerification) -> VerifiedWorker:
    if worker.pool not in _POOLS:
        raise InternalError(f"worker {worker.id} has a pool unknown to this client")
    blocks = worker.blocks
    return VerifiedWorker(
        id=worker.id,
        pool=_POOLS[worker.pool],
        incarnation=worker.incarnation,
        answered=worker.answered,
        blocks_total=worker.blocks_total,
        blocks=BlockUsage(blocks.free, blocks.reserved, blocks.rows, blocks.cached, blocks.quarantined),
        held=tuple(BlockHolding(held.holder, held.stage, held.blocks, held.age_s) for held in worker.held),
        problems=tuple(worker.problems),
    )
