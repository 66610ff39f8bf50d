"""Where a request goes: pure functions of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Collection

from router.scheduling.fleet import Fleet, Pair, Worker
from router.scheduling.requests import Choice
from twinpool.kv.blocks import reservation_tokens
from twinpool.types import Pool

Permits = Callable[[Choice, Worker, Worker | None], bool]
"""Whether a choice may be placed on a prefill worker and, unless it needs none, on a decode worker."""


def reserved_tokens(choice: Choice) -> int:
    """Tokens the decode worker sets aside for a request."""
    return reservation_tokens(choice.num_tokens)


def has_slot(prefill: Worker, most_prompts: int) -> bool:
    """Whether a prefill worker takes another prompt."""
    return len(prefill.charged) < most_prompts


def choose_pair(
    fleet: Fleet, choice: Choice, permits: Permits, *, most_prompts: int, most_rows: int
) -> Pair | None:
    """The usable pair with the least to read on its prefill side, then the fewest rows on its decode side.

    None if no pair has room now. A request with a pair of its own takes that one, proven or not. Workers
    whose engine has failed on its row come last, so that another one is asked before the row is blamed.
    """
    pairs = [pair for pair in _usable_pairs(fleet, choice) if _fits(pair, choice, most_prompts, most_rows)]
    pairs = [pair for pair in pairs if permits(choice, pair.prefill, pair.decode)]
    return min(
        pairs,
        key=lambda pair: (
            len({pair.prefill.worker_id, pair.decode.worker_id}.intersection(choice.row_failed_on.values())),
            sum(pair.prefill.charged.values()),
            pair.decode.num_rows,
            -pair.decode.blocks_free,
        ),
        default=None,
    )


def choose_prefill(fleet: Fleet, choice: Choice, permits: Permits, *, most_prompts: int) -> Worker | None:
    """The prefill worker with the least to read, for a request that needs no hand-off."""
    if choice.request.pair is not None:
        pinned = fleet.worker(choice.request.pair[0])
        return pinned if pinned and _reads(pinned, choice, most_prompts) else None
    serving = {pair.prefill.worker_id for pair in fleet.pairs() if pair.usable}
    workers = [
        worker
        for worker in fleet.pool(Pool.PREFILL)
        if worker.worker_id in serving and _reads(worker, choice, most_prompts)
    ]
    workers = [worker for worker in workers if permits(choice, worker, None)]
    return min(
        workers,
        key=lambda worker: (worker.worker_id in choice.row_failed_on.values(), sum(worker.charged.values())),
        default=None,
    )


def _usable_pairs(fleet: Fleet, choice: Choice) -> list[Pair]:
    if choice.request.pair is not None:
        pair = fleet.pair(*choice.request.pair)
        return [pair] if pair and pair.transport and not pair.draining else []
    return [pair for pair in fleet.pairs() if pair.usable]


def _fits(pair: Pair, choice: Choice, most_prompts: int, most_rows: int) -> bool:
    if not _reads(pair.prefill, choice, most_prompts):
        return False
    return has_room(pair.decode, choice, reserved_tokens(choice), most_rows)


def choose_target(
    fleet: Fleet, choice: Choice, num_tokens: int, targets: Collection[str], *, most_rows: int
) -> Worker | None:
    """Of the targets (incarnations) with room for a moving row, the one with the fewest rows.

    Only those that a canary has been through.
    """
    fits = [
        worker
        for worker in fleet.staying(Pool.DECODE)
        if worker.proven and worker.incarnation in targets and has_room(worker, choice, num_tokens, most_rows)
    ]
    return min(
        fits,
        key=lambda worker: (worker.num_rows, -worker.blocks_free),
        default=None,
    )


def has_room(decode: Worker, choice: Choice, num_tokens: int, most_rows: int) -> bool:
    """Whether a decode worker can set num_tokens aside for a request, and hold all of it one day."""
    if decode.num_rows >= most_rows or not decode.takes_new:
        return False
    if choice.most_tokens > decode.capacity_tokens:
        return False  # it would outgrow this worker, alone and without anybody to make room
    return decode.may_reserve(decode.blocks_for(num_tokens))


def _reads(prefill: Worker, choice: Choice, most_prompts: int) -> bool:
    if not prefill.takes_new or not has_slot(prefill, most_prompts):
        return False
    return prefill.blocks_for(choice.num_tokens) <= prefill.blocks_free
