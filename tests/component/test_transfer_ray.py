"""The `ray` transport with a real cluster: caches on their way, and what becomes of them when a side ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from tests.support.workers.handoff_ends import SMALL, WAIT_S
from tests.support.workers.ray_decode_side import NUM_BLOCKS
from tests.support.workers.ray_pair import WRITER, RayPair, ask, running_actor, running_pair
from twinpool.serving.cluster import Cluster
from twinpool.session.messages import Released, ReleaseReason, Written
from twinpool.transfer.ray_sender import RaySender
from twinpool.types import HandoffId
from twinpool.worker.actor import GROUPS

NUM_THREADS = max(GROUPS.values())


@pytest.fixture
def checking_pair(ray_actor: tuple[str, Any]) -> Iterator[RayPair]:
    with running_pair(*ray_actor, checksum=True) as pair:
        yield pair


@pytest.fixture
def lone_pair(ray_session: Cluster) -> Iterator[RayPair]:
    """A pair whose actor no other test has spoken to or will."""
    with running_actor() as named, running_pair(*named) as pair:
        yield pair


def test_chunks_arrive_bit_exact(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.reserve_and_begin(sender, HandoffId("a"), 4)
    assert sender.push(HandoffId("a"), [5, 2], 0)
    assert sender.push(HandoffId("a"), [7], 2)
    assert sender.written(HandoffId("a"))
    written = ask(pair.actor.wait_for.remote(Written))
    assert written.num_bytes == 3 * SMALL.block_bytes
    assert pair.holds(reserved[:3], [5, 2, 7])


def test_source_blocks_may_be_reused_as_soon_as_they_are_pushed(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.reserve_and_begin(sender, HandoffId("a"), 1)
    expected = pair.source.blocks[3].tobytes()
    ask(pair.actor.hold.remote("push"))
    assert sender.push(HandoffId("a"), [3], 0)
    pair.source.clear_blocks([3])
    assert sender.written(HandoffId("a"))
    ask(pair.actor.wait_until_held.remote("push"))
    ask(pair.actor.let_go.remote("push"))
    ask(pair.actor.wait_for.remote(Written))
    assert ask(pair.actor.bytes_of.remote(reserved)) == expected


def test_calls_may_overtake_one_another(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.reserve_and_begin(sender, HandoffId("a"), 4)
    ask(pair.actor.hold.remote("push"))
    sender.push(HandoffId("a"), [4], 0)
    ask(pair.actor.wait_until_held.remote("push"))
    sender.push(HandoffId("a"), [0, 6], 1)
    sender.push(HandoffId("a"), [1], 3)
    assert sender.written(HandoffId("a"))
    ask(pair.actor.wait_until_answered.remote("push", 2))
    ask(pair.actor.wait_until_answered.remote("written", 1))
    assert not [event for event in ask(pair.actor.heard.remote()) if isinstance(event, Written)]
    ask(pair.actor.let_go.remote("push"))
    ask(pair.actor.wait_for.remote(Written))
    assert pair.holds(reserved, [4, 0, 6, 1])


def test_words_do_not_wait_for_another_pairs_chunks(pair: RayPair) -> None:
    slow, healthy = pair.connect(), pair.connect("prefill-1-cc")
    pair.reserve_and_begin(slow, HandoffId("slow"), NUM_THREADS)
    for block in range(NUM_THREADS):
        ask(pair.actor.hold.remote("push"))
        slow.push(HandoffId("slow"), [block], block)
    ask(pair.actor.wait_until_held.remote("push"))
    pair.reserve_and_begin(healthy, HandoffId("healthy"), 1, "prefill-1-cc")
    ask(pair.actor.let_go.remote("push"))
    assert slow.written(HandoffId("slow"))
    ask(pair.actor.wait_for.remote(Written))


def test_sound_blocks_pass_the_checksum_and_damaged_ones_are_named(checking_pair: RayPair) -> None:
    pair = checking_pair
    sender = pair.connect()
    pair.reserve_and_begin(sender, HandoffId("sound"), 2)
    sender.push(HandoffId("sound"), [1, 2], 0)
    sender.written(HandoffId("sound"))
    ask(pair.actor.wait_for.remote(Written))
    reserved = pair.reserve_and_begin(sender, HandoffId("damaged"), 2)
    sender.push(HandoffId("damaged"), [1, 2], 0)
    ask(pair.actor.wait_until_answered.remote("push", 2))
    ask(pair.actor.fill.remote(reserved[1:], 0))
    sender.written(HandoffId("damaged"))
    released = ask(pair.actor.wait_for.remote(Released))
    assert (released.holder, released.reason) == ("damaged", ReleaseReason.DAMAGED)
    assert released.detail == "checksum of block 1 differs"


def test_begin_is_refused_without_a_reservation(pair: RayPair) -> None:
    sender = pair.connect()
    sender.begin(HandoffId("a"))
    pair.log.heard.wait_for(("refused", "a"))
    assert not sender.push(HandoffId("a"), [0], 0)
    assert not sender.written(HandoffId("a"))


def test_revoked_blocks_are_free_at_once_and_late_chunks_are_dropped(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.reserve_and_begin(sender, HandoffId("a"), 2)
    ask(pair.actor.hold.remote("push"))
    assert sender.push(HandoffId("a"), [4, 5], 0)
    ask(pair.actor.wait_until_held.remote("push"))
    ask(pair.actor.give_up.remote("a"))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    ask(pair.actor.fill.remote(reserved, 0xAB))
    ask(pair.actor.let_go.remote("push"))
    pair.log.heard.wait_for(("stop", "a"))
    assert set(ask(pair.actor.bytes_of.remote(reserved))) == {0xAB}
    assert not sender.push(HandoffId("a"), [4], 0)
    assert not sender.written(HandoffId("a"))


def test_renewal_of_a_revoked_reservation_is_told_to_stop(pair: RayPair) -> None:
    sender = pair.connect()
    pair.reserve_and_begin(sender, HandoffId("a"), 2)
    ask(pair.actor.give_up.remote("a"))
    sender.renew(HandoffId("a"))
    pair.log.heard.wait_for(("stop", "a"))


def test_sender_that_gives_up_frees_the_blocks(pair: RayPair) -> None:
    sender = pair.connect()
    pair.reserve_and_begin(sender, HandoffId("a"), 2)
    sender.stopped(HandoffId("a"))
    released = ask(pair.actor.wait_for.remote(Released))
    assert released.reason is ReleaseReason.HANDOFF_FAILED
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS


def test_sender_that_gives_up_before_begin_is_answered_frees_the_blocks(pair: RayPair) -> None:
    sender = pair.connect()
    ask(pair.actor.reserve.remote("a", 2, WRITER))
    ask(pair.actor.hold.remote("begin"))
    sender.begin(HandoffId("a"))
    ask(pair.actor.wait_until_held.remote("begin"))
    sender.stopped(HandoffId("a"))
    ask(pair.actor.let_go.remote("begin"))
    ask(pair.actor.wait_for.remote(Released))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    assert pair.log.heard() == []


def test_closing_sender_frees_its_blocks_and_says_nothing(pair: RayPair) -> None:
    sender = pair.connect()
    pair.reserve_and_begin(sender, HandoffId("a"), 2)
    sender.close()
    ask(pair.actor.wait_for.remote(Released))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    assert pair.log.heard() == [("accepted", "a", 0)]


def test_late_farewell_of_an_older_pair_does_not_end_the_newer(lone_pair: RayPair) -> None:
    pair = lone_pair
    older = pair.connect()
    ask(pair.actor.hold.remote("leave"))
    older.close()
    ask(pair.actor.wait_until_held.remote("leave"))
    newer = pair.connect()
    reserved = pair.reserve_and_begin(newer, HandoffId("a"), 1)
    ask(pair.actor.let_go.remote("leave"))
    ask(pair.actor.wait_until_answered.remote("leave", 1))
    newer.push(HandoffId("a"), [6], 0)
    newer.written(HandoffId("a"))
    ask(pair.actor.wait_for.remote(Written))
    assert pair.holds(reserved, [6])


@pytest.mark.parametrize("word", ["begin", "push", "renew", "written"])
def test_pair_that_the_decode_worker_has_given_up_breaks_at_the_next_word(pair: RayPair, word: str) -> None:
    sender = pair.connect()
    if word != "begin":
        pair.reserve_and_begin(sender, HandoffId("a"), 2)
    ask(pair.actor.begin_anew.remote(checksum=False))
    match word:
        case "begin":
            sender.begin(HandoffId("a"))
        case "push":
            assert sender.push(HandoffId("a"), [0], 0)
        case "renew":
            sender.renew(HandoffId("a"))
        case _:
            assert sender.written(HandoffId("a"))
    pair.log.wait_until_broken()
    assert not sender.push(HandoffId("a"), [0], 0)
    pair.reserve_and_begin(pair.connect(), HandoffId("b"), 1)


@pytest.mark.parametrize("in_flight", [True, False])
def test_killed_actor_breaks_the_pair(lone_pair: RayPair, in_flight: bool) -> None:
    pair = lone_pair
    sender = pair.connect()
    pair.reserve_and_begin(sender, HandoffId("a"), 2)
    if in_flight:
        ask(pair.actor.hold.remote("push"))
        sender.push(HandoffId("a"), [0], 0)
        ask(pair.actor.wait_until_held.remote("push"))
    ray.kill(pair.actor, no_restart=True)
    if not in_flight:
        sender.push(HandoffId("a"), [0], 0)
    pair.log.wait_until_broken()
    assert not sender.push(HandoffId("a"), [0], 0)
    assert not sender.written(HandoffId("a"))


def test_push_beyond_the_reservation_is_an_error_and_the_pair_goes_on(pair: RayPair) -> None:
    sender = pair.connect()
    pair.reserve_and_begin(sender, HandoffId("a"), 1)
    with pytest.raises(ValueError, match="reserved 1 blocks"):
        sender.push(HandoffId("a"), [0, 1], 0)
    sender.stopped(HandoffId("a"))
    ask(pair.actor.wait_for.remote(Released))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    pair.reserve_and_begin(sender, HandoffId("b"), 1)


def test_nothing_is_left_in_the_object_store(pair: RayPair) -> None:
    sender = pair.connect()
    for attempt in ("a", "b", "c"):
        pair.reserve_and_begin(sender, HandoffId(attempt), 2)
        sender.push(HandoffId(attempt), [0], 0)
        sender.push(HandoffId(attempt), [1], 1)
    sender.written(HandoffId("a"))
    sender.stopped(HandoffId("b"))
    ask(pair.actor.give_up.remote("c"))
    assert not _until_stopped(sender, "c")
    _wait_until_store_is_empty()


def _until_stopped(sender: RaySender, attempt: str) -> bool:
    deadline = time.monotonic() + WAIT_S
    while (pushed := sender.push(HandoffId(attempt), [0], 0)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return pushed


def _wait_until_store_is_empty() -> None:
    from ray._private.internal_api import memory_summary

    summarize: Any = memory_summary
    address = ray.get_runtime_context().gcs_address
    deadline = time.monotonic() + WAIT_S
    while "Plasma memory usage 0 MiB, 0 objects" not in (summary := summarize(address, stats_only=True)):
        assert time.monotonic() < deadline, summary
        time.sleep(0.1)
