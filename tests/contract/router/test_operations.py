"""GetStatus, WatchStatus, CheckPairs and Verify."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, fields

import grpc
import pytest
from google.rpc import error_details_pb2

from router.entrance.open_calls import MOST_AT_ONCE
from tests.support.router.shell import Shell, detail, failure_of, fields_of, reason_of
from twinpool.totals import Totals
from twinpool.types import Pool
from twinpool.v1 import operations_pb2 as pb
from twinpool.v1 import types_pb2

PATIENCE_S = 10.0


async def test_the_status_is_the_snapshot(shell: Shell) -> None:
    status = (await shell.operations.GetStatus(pb.GetStatusRequest())).status
    assert (status.model, status.serving, status.requests, status.handoffs_in_flight) == ("bytes", True, 9, 2)
    assert (status.queue.requests, status.queue.tokens) == (7, 70)
    prefill, decode = status.workers
    assert (prefill.id, prefill.pool, prefill.state, prefill.pid) == (
        "prefill-0",
        types_pb2.POOL_PREFILL,
        pb.WORKER_STATE_READY,
        11,
    )
    assert (decode.node, decode.incarnation, decode.running, decode.waiting) == ("127.0.0.1", "d-1", 4, 1)
    assert status.pairs == [
        pb.PairStatus(prefill="prefill-0", decode="decode-0", transport="shm", ready=True)
    ]


async def test_used_blocks_are_neither_free_nor_cached_and_include_the_quarantined(shell: Shell) -> None:
    _, decode = (await shell.operations.GetStatus(pb.GetStatusRequest())).status.workers
    assert decode.blocks_total == 200
    assert (decode.blocks_used, decode.blocks_cached, decode.blocks_quarantined) == (30, 20, 5)


async def test_the_status_has_the_sums_that_rates_are_made_of(shell: Shell) -> None:
    totals = Totals(*range(1, 1 + len(fields(Totals))))
    shell.dispatcher.change(totals=totals, most_running={Pool.PREFILL: 8, Pool.DECODE: 64})
    status = (await shell.operations.GetStatus(pb.GetStatusRequest())).status
    assert status.totals == pb.Totals(**asdict(totals))
    assert len(status.totals.ListFields()) == len(pb.Totals.DESCRIPTOR.fields)
    assert [(target.size, target.most_running) for target in status.targets] == [(1, 8), (2, 64)]


async def test_a_watcher_sees_changes(shell: Shell) -> None:
    updates = aiter(shell.operations.WatchStatus(pb.WatchStatusRequest(interval_s=0.1)))
    assert (await anext(updates)).status.requests == 9
    shell.dispatcher.change(num_requests=0)
    async with asyncio.timeout(PATIENCE_S):
        while (await anext(updates)).status.requests != 0:  # sent before the change
            pass


async def test_a_watcher_too_many_is_told_to_try_again(shell: Shell) -> None:
    asked = pb.WatchStatusRequest()
    watches = [aiter(shell.operations.WatchStatus(asked)) for _ in range(MOST_AT_ONCE["WatchStatus"])]
    for watch in watches:
        await anext(watch)
    error = await failure_of(shell.operations.WatchStatus(asked, timeout=PATIENCE_S))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
    assert detail(error, error_details_pb2.RetryInfo) is not None
    await shell.operations.GetStatus(pb.GetStatusRequest())


async def test_pairs_are_checked_for_one_client_at_a_time_and_then_for_the_next(shell: Shell) -> None:
    shell.pairs.go.clear()
    first = shell.operations.CheckPairs(pb.CheckPairsRequest())
    await shell.pairs.asked.wait()
    second = shell.operations.CheckPairs(pb.CheckPairsRequest(), timeout=PATIENCE_S)
    error = await failure_of(second)
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
    shell.pairs.go.set()
    assert len([result async for result in first]) == 1
    assert len([result async for result in shell.operations.CheckPairs(pb.CheckPairsRequest())]) == 1


async def test_every_pair_is_checked_and_the_failing_hop_named(shell: Shell) -> None:
    decodes = [shell.dispatcher.state.workers[1]]
    shell.dispatcher.change(workers=(*shell.dispatcher.state.workers, *decodes))
    results = [result async for result in shell.operations.CheckPairs(pb.CheckPairsRequest())]
    assert [(result.pair.prefill, result.pair.decode) for result in results] == [
        ("prefill-0", "decode-0")
    ] * 2
    assert {(r.failed_hop, r.detail, r.prefill_s) for r in results} == {(pb.HOP_HANDOFF, "it stopped", 0.5)}


async def test_a_verification_tells_what_each_worker_holds_and_what_is_wrong(shell: Shell) -> None:
    found = await shell.operations.Verify(pb.VerifyRequest())
    assert not found.at_rest
    decode, prefill = found.workers
    assert decode == pb.WorkerVerification(
        id="decode-0",
        pool=types_pb2.POOL_DECODE,
        incarnation="d-1",
        answered=True,
        blocks_total=200,
        blocks=pb.BlockUsage(free=150, reserved=8, rows=30, cached=7, quarantined=5),
        held=[pb.BlockHolding(holder="h-1", stage="writing", blocks=8, age_s=0.5)],
        problems=["it holds h-1, which the scheduler does not know"],
    )
    assert (prefill.pool, prefill.answered) == (types_pb2.POOL_PREFILL, False)
    assert list(prefill.problems) == ["no answer"]


async def test_a_pool_is_resized(shell: Shell) -> None:
    asked = pb.SetPoolSizeRequest(pool=types_pb2.POOL_DECODE, size=5)
    assert (await shell.operations.SetPoolSize(asked)).previous_size == 2
    assert shell.pools.told == [(Pool.DECODE, 5)]


async def test_a_worker_drains(shell: Shell) -> None:
    await shell.operations.DrainWorker(pb.DrainWorkerRequest(worker_id="decode-1"))
    assert shell.pools.told == ["decode-1"]


async def test_a_pool_is_renewed_one_worker_after_the_other(shell: Shell) -> None:
    stream = shell.operations.RestartWorkers(pb.RestartWorkersRequest(pool=types_pb2.POOL_DECODE))
    renewed = [(each.worker_id, each.incarnation) async for each in stream]
    assert renewed == [("decode-0", "decode-0-new"), ("decode-1", "decode-1-new")]


async def test_a_worker_that_does_not_come_back_ends_the_stream_typed(shell: Shell) -> None:
    error = await failure_of(shell.operations.RestartWorkers(pb.RestartWorkersRequest(worker_id="prefill-0")))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.UNAVAILABLE, "START_FAILED")


async def test_changes_that_make_no_sense_name_their_field(shell: Shell) -> None:
    for call, field in (
        (shell.operations.SetPoolSize(pb.SetPoolSizeRequest(size=2)), "pool"),
        (shell.operations.SetPoolSize(pb.SetPoolSizeRequest(pool=types_pb2.POOL_PREFILL)), "size"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert fields_of(refusal.value) == [field]
    error = await failure_of(shell.operations.RestartWorkers(pb.RestartWorkersRequest()))
    assert (error.code(), fields_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, ["which"])
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await shell.operations.DrainWorker(pb.DrainWorkerRequest(worker_id="nobody"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
