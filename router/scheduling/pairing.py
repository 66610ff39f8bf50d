"""Joins every prefill worker with every decode worker, and says which pairs may serve: pure."""

from __future__ import annotations

from router.scheduling.commands import ProbePair
from router.scheduling.fleet import JOIN_AGAIN_S, PROBE_AGAIN_S, Fleet, Pair, Worker
from router.scheduling.outbox import Outbox
from twinpool.session import messages as m
from twinpool.types import Pool


class Pairing:
    """The life of all pairs: joining, joined (a canary is on its way), proven, broken (joined again)."""

    def __init__(self, fleet: Fleet, outbox: Outbox) -> None:
        self._fleet = fleet
        self._outbox = outbox

    def join(self, pair: Pair, now: float) -> None:
        """Have the prefill worker open the connection; anew, if it has tried for too long."""
        hello = pair.decode.hello
        if pair.joining:
            self._outbox.send(pair.prefill.worker_id, m.LeavePair(hello.incarnation))
        pair.joining, pair.rejoin_at = True, now + JOIN_AGAIN_S
        self._outbox.send(pair.prefill.worker_id, m.JoinPair(hello.incarnation, hello.endpoint))

    def rejoin(self, now: float) -> None:
        """Join again what has been broken, or on its way, for long enough."""
        for pair in self._fleet.pairs():
            if pair.rejoin_at is not None and now >= pair.rejoin_at and not pair.draining:
                self.join(pair, now)

    def joined(self, prefill: Worker, decode_incarnation: str, transport: str, now: float) -> None:
        """A connection is open: a canary may try it."""
        pair = self.of(prefill, decode_incarnation)
        if pair is None:
            self._outbox.send(prefill.worker_id, m.LeavePair(decode_incarnation))
            return
        pair.transport, pair.joining = transport, False
        if pair.draining:
            return
        pair.rejoin_at = now + PROBE_AGAIN_S
        ids = (prefill.worker_id, pair.decode.worker_id)
        self._outbox.put(ProbePair(*ids, prefill.incarnation, decode_incarnation))

    def proven(self, prefill_incarnation: str, decode_incarnation: str) -> None:
        """A canary has passed."""
        prefill = self._fleet.by_incarnation(prefill_incarnation)
        pair = self.of(prefill, decode_incarnation) if prefill else None
        if pair is not None and pair.transport:
            pair.proven = pair.prefill.proven = pair.decode.proven = True
            pair.num_failures = 0
            pair.rejoin_at = None

    def failed(self, prefill_incarnation: str, decode_incarnation: str, now: float) -> None:
        """A canary did not pass: closed, and joined and tried anew after a while.

        Its two ends may disagree about it, which only a new connection is sure to mend.
        """
        prefill = self._fleet.by_incarnation(prefill_incarnation)
        pair = self.of(prefill, decode_incarnation) if prefill else None
        if pair is not None and pair.transport and not pair.proven:
            self._outbox.send(pair.prefill.worker_id, m.LeavePair(decode_incarnation))
            pair.broke(now)

    def worker_gone(self, pool: Pool, incarnation: str) -> None:
        """Tell whoever may hand off to it, or take hand-offs from it, that a worker's process has ended.

        A decode worker may have been a writer, too: as it drained.
        """
        for other in self._fleet.workers():
            if pool is Pool.DECODE and (other.pool is Pool.PREFILL or other.draining):
                self._outbox.send(other.worker_id, m.LeavePair(incarnation))
            if other.pool is Pool.DECODE:
                self._outbox.send(other.worker_id, m.WriterGone(incarnation))

    def of(self, prefill: Worker, decode_incarnation: str) -> Pair | None:
        """A pair by the words its prefill worker uses."""
        decode = self._fleet.by_incarnation(decode_incarnation)
        return self._fleet.pair(prefill.worker_id, decode.worker_id) if decode else None
