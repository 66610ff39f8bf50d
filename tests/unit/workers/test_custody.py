"""What a decode worker tells router, engine and writers about reservations, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from decode_worker.custody import Custody
from twinpool.config import HandoffConfig
from twinpool.kv.layout import KvLayout
from twinpool.kv.pool import BlockPool
from twinpool.kv.reservations import Opened, RowReady
from twinpool.sampling.params import SamplingParams
from twinpool.session.messages import (
    Admit,
    Event,
    Granted,
    LoadReport,
    QuarantineOverdue,
    Refused,
    Released,
    ReleaseReason,
    Reserve,
    Written,
)
from twinpool.types import AttemptId, HandoffId
from twinpool.worker.pulse import Pulse

A, H, WRITER = AttemptId("attempt"), HandoffId("handoff"), "p0-1"
A2, H2 = AttemptId("other attempt"), HandoffId("other handoff")
LAYOUT = KvLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_size=4, dtype="float32")
ADMIT = Admit(A, H, 0, (1,) * 5, (1,), SamplingParams(9))
ALL_FREE = LoadReport(blocks_free=8)


class Bench:
    """Custody of eight blocks of four tokens. said: everything that left it, in order."""

    def __init__(self, *, checksum: bool = False) -> None:
        self.now = 0.0
        self.said: list[Event | RowReady | tuple[str, HandoffId]] = []
        self.on_stop: Callable[[str, HandoffId], None] = lambda writer, handoff: None
        self.custody = Custody(
            BlockPool(8),
            LAYOUT,
            HandoffConfig(checksum=checksum, quarantine_report_s=2.0),
            Pulse(),
            checksum=lambda block: 100 + block,
            enter=self.said.append,
            publish=self.said.append,
            clock=lambda: self.now,
        )
        self.custody.attach(self)

    def stop(self, writer: str, handoff: HandoffId) -> None:
        """A receiver is to stop a writer."""
        self.said.append((writer, handoff))
        self.on_stop(writer, handoff)

    def close(self) -> None:
        raise AssertionError("custody closes no receiver")

    def reserve(self, num_tokens: int = 9) -> None:
        self.custody.reserve(Reserve(H, (A,), num_tokens, WRITER, 30.0))

    def write(self, checksums: Sequence[int] = ()) -> None:
        self.reserve()
        self.custody.begin(WRITER, H)
        self.now += 0.5
        self.custody.written(WRITER, H, 2, checksums)

    def heard(self) -> list[Event | RowReady | tuple[str, HandoffId]]:
        """What was said since it was last asked."""
        said, self.said[:] = list(self.said), []
        return said


def test_a_reservation_is_granted_in_whole_blocks_or_refused_with_the_counts() -> None:
    bench = Bench()
    bench.reserve(num_tokens=9)
    assert bench.heard() == [Granted(H, LoadReport(waiting=1, blocks_free=5))]
    bench.custody.reserve(Reserve(H2, (A2,), 21, WRITER, 30.0))
    assert bench.heard() == [Refused(H2, LoadReport(waiting=1, blocks_free=5))]


def test_a_written_cache_is_reported_with_its_bytes_and_time_before_the_row_enters() -> None:
    bench = Bench()
    bench.reserve()
    bench.custody.admit(ADMIT)
    assert bench.custody.begin(WRITER, H) == Opened((0, 1, 2))
    bench.now = 0.5
    bench.heard()
    bench.custody.written(WRITER, H, 2, ())
    assert bench.heard() == [Written(H, 2 * LAYOUT.block_bytes, 0.5), RowReady(ADMIT, (0, 1, 2))]
    assert bench.custody.load() == LoadReport(running=1, blocks_free=5)


def test_a_row_is_left_to_the_engine_and_its_eviction_reported() -> None:
    bench = Bench()
    bench.write()
    bench.custody.admit(ADMIT)
    bench.heard()
    assert bench.custody.give_up(A) == A
    assert bench.heard() == []
    bench.custody.evict(A, ReleaseReason.FAILED, "RuntimeError")
    assert bench.heard() == [Released(A, ReleaseReason.FAILED, "RuntimeError", ALL_FREE)]


def test_what_is_not_held_is_answered_gone() -> None:
    bench = Bench()
    assert bench.custody.give_up(H) is None
    bench.custody.admit(ADMIT)
    bench.custody.evict(A, ReleaseReason.EVICTED)
    assert bench.heard() == [Released(each, ReleaseReason.GONE, "", ALL_FREE) for each in (H, A, A)]


def test_a_revoked_writer_is_reported_quarantined_then_stopped_then_free() -> None:
    bench = Bench()
    bench.reserve()
    bench.custody.begin(WRITER, H)
    bench.heard()
    assert bench.custody.give_up(H) is None
    quarantined = LoadReport(blocks_free=5, blocks_quarantined=3, handoffs=1)
    assert bench.heard() == [Released(H, ReleaseReason.REVOKED, "", quarantined), (WRITER, H)]
    bench.custody.stopped(WRITER, H)
    assert bench.heard() == [ALL_FREE]


def test_a_receiver_may_answer_a_stop_from_within_it() -> None:
    bench = Bench()
    bench.on_stop = bench.custody.stopped
    bench.reserve()
    bench.custody.begin(WRITER, H)
    bench.heard()
    assert bench.custody.give_up(H) is None
    assert bench.heard()[1:] == [(WRITER, H), ALL_FREE]


def test_time_expires_reservations_and_reports_writers() -> None:
    bench = Bench()
    bench.reserve()
    bench.custody.begin(WRITER, H)
    bench.now = 20.0
    bench.custody.progress(WRITER, H)
    bench.heard()
    bench.now = 49.0
    bench.custody.expire()
    assert bench.heard() == []
    bench.now = 50.0
    bench.custody.expire()
    assert isinstance(released := bench.heard()[0], Released)
    assert (released.reason, released.detail) == (ReleaseReason.EXPIRED, "no progress for 30 s")
    bench.now = 52.0
    bench.custody.expire()
    bench.custody.expire()
    assert bench.heard() == [QuarantineOverdue(H, WRITER)]


def test_a_connections_end_fails_what_was_being_written() -> None:
    bench = Bench()
    bench.reserve()
    bench.custody.begin(WRITER, H)
    bench.heard()
    bench.custody.connection_ended(WRITER)
    detail = "the hand-off connection ended"
    assert bench.heard() == [Released(H, ReleaseReason.CONNECTION_ENDED, detail, ALL_FREE)]


@pytest.mark.parametrize("checksums", [(100, 101, 102), ()])
def test_a_cache_whose_blocks_are_as_they_were_sent_is_taken(checksums: tuple[int, ...]) -> None:
    bench = Bench(checksum=True)
    bench.write(checksums)
    assert isinstance(bench.heard()[-1], Written)


@pytest.mark.parametrize(("checksums", "damaged"), [((0, 101, 102), 0), ((100, 101, 0), 2)])
def test_a_damaged_cache_is_refused_naming_the_block(checksums: tuple[int, ...], damaged: int) -> None:
    bench = Bench(checksum=True)
    bench.write(checksums)
    detail = f"checksum of block {damaged} differs"
    assert bench.heard()[-1] == Released(H, ReleaseReason.DAMAGED, detail, ALL_FREE)


def test_checksums_are_not_compared_unless_asked_for() -> None:
    bench = Bench()
    bench.write((0, 0, 0))
    assert isinstance(bench.heard()[-1], Written)


@pytest.mark.parametrize(("checksums", "last"), [((103, 104), Written), ((100, 101), Released)])
def test_only_own_blocks_are_compared(checksums: tuple[int, ...], last: type) -> None:
    """Two blocks are shared, so that the third and fourth of the cache are the first that were sent."""
    bench = Bench(checksum=True)
    bench.write()
    bench.custody.admit(ADMIT)
    (row,) = bench.custody._held
    bench.custody._pool.publish(row.lease, 2)
    assert bench.custody._held.reserve(H2, A2, 2, WRITER, 30.0, 0.0, shared=row.lease.shared)
    assert bench.custody.begin(WRITER, H2) == Opened((3, 4), num_shared=2)
    bench.custody.written(WRITER, H2, 2, checksums)
    assert isinstance(bench.heard()[-1], last)
