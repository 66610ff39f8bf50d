"""The `ray` transport with a real cluster: the receiver lives in an actor, the sender in this process."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray

from tests.component.handoff_ends import SMALL, WAIT_S, SenderLog, identity, random_storage
from tests.component.ray_decode_side import NUM_BLOCKS, start_decode_side
from twinpool.cli.cluster import Cluster
from twinpool.config import HandoffConfig
from twinpool.kv.storage import KvStorage
from twinpool.messages import JoinPair, Released, ReleaseReason, Written
from twinpool.transfer.connect import connect_pair
from twinpool.transfer.port import HandoffRefused, HandoffSender
from twinpool.transfer.ray_sender import RaySender, connect_ray
from twinpool.types import HandoffEndpoint
from twinpool.worker_actor import GROUPS

ANSWER_S = 30.0
WRITER = "prefill-0-bb"
NUM_THREADS = max(GROUPS.values())


def ask(reference: Any) -> Any:
    answer: Any = ray.get(reference, timeout=ANSWER_S)
    return answer


class RayPair:
    """A decode side in an actor, and senders to it."""

    def __init__(self, decode: str, actor: Any, *, checksum: bool = False) -> None:
        self.decode = decode
        self.actor = actor
        ask(actor.begin_anew.remote(checksum=checksum))
        self.source = random_storage(SMALL, 8)
        self.log = SenderLog()
        self._checksum = checksum
        self._senders: list[HandoffSender] = []

    def connect(self, writer: str = WRITER) -> RaySender:
        sender = connect_ray(
            self.decode,
            self.decode,
            identity(writer),
            self.source,
            self.log,
            checksum=self._checksum,
            timeout_s=ANSWER_S,
        )
        self.own(sender)
        return sender

    def own(self, sender: HandoffSender) -> None:
        """Close it with the pair."""
        self._senders.append(sender)

    def begin(
        self, sender: RaySender, attempt: str, num_blocks: int, writer: str = WRITER
    ) -> tuple[int, ...]:
        """Reserve and begin; the reserved blocks."""
        blocks: tuple[int, ...] = ask(self.actor.reserve.remote(attempt, num_blocks, writer))
        sender.begin(attempt)
        self.log.heard.wait_for(("accepted", attempt))
        return blocks

    def holds(self, reserved: tuple[int, ...], sent: list[int]) -> bool:
        """Whether reserved blocks hold the bytes of ours."""
        expected = self.source.block_bytes_view()[sent].numpy().tobytes()
        return bool(ask(self.actor.bytes_of.remote(reserved)) == expected)

    def end(self) -> None:
        for sender in self._senders:
            sender.close()


@contextmanager
def running_actor() -> Iterator[tuple[str, Any]]:
    """Its name and its handle."""
    decode = f"decode-0-{secrets.token_hex(4)}"
    actor = start_decode_side(decode)
    yield decode, actor
    ray.kill(actor, no_restart=True)


@contextmanager
def running_pair(decode: str, actor: Any, *, checksum: bool = False) -> Iterator[RayPair]:
    before = set(threading.enumerate())
    pair = RayPair(decode, actor, checksum=checksum)
    yield pair
    pair.end()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("handoff"):
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def actor(ray_session: Cluster) -> Iterator[tuple[str, Any]]:
    """Shared by the tests that leave it alive, since it takes seconds to start."""
    with running_actor() as named:
        yield named


@pytest.fixture
def pair(actor: tuple[str, Any]) -> Iterator[RayPair]:
    with running_pair(*actor) as pair:
        yield pair


@pytest.fixture
def checking_pair(actor: tuple[str, Any]) -> Iterator[RayPair]:
    with running_pair(*actor, checksum=True) as pair:
        yield pair


@pytest.fixture
def lone_pair(ray_session: Cluster) -> Iterator[RayPair]:
    """A pair whose actor no other test has spoken to or will."""
    with running_actor() as named, running_pair(*named) as pair:
        yield pair


def test_chunks_arrive_bit_exact(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.begin(sender, "a", 4)
    assert sender.push("a", [5, 2], 0)
    assert sender.push("a", [7], 2)
    assert sender.written("a")
    written = ask(pair.actor.wait_for.remote(Written))
    assert written.num_bytes == 3 * SMALL.block_bytes
    assert pair.holds(reserved[:3], [5, 2, 7])


def test_source_blocks_may_be_reused_as_soon_as_they_are_pushed(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.begin(sender, "a", 1)
    expected = pair.source.block_bytes_view()[3].numpy().tobytes()
    ask(pair.actor.hold.remote("push"))
    assert sender.push("a", [3], 0)
    pair.source.clear_blocks([3])
    assert sender.written("a")
    ask(pair.actor.wait_until_held.remote("push"))
    ask(pair.actor.let_go.remote("push"))
    ask(pair.actor.wait_for.remote(Written))
    assert ask(pair.actor.bytes_of.remote(reserved)) == expected


def test_calls_may_overtake_one_another(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.begin(sender, "a", 4)
    ask(pair.actor.hold.remote("push"))
    sender.push("a", [4], 0)
    ask(pair.actor.wait_until_held.remote("push"))
    sender.push("a", [0, 6], 1)
    sender.push("a", [1], 3)
    assert sender.written("a")
    ask(pair.actor.wait_until_answered.remote("push", 2))
    ask(pair.actor.wait_until_answered.remote("written", 1))
    assert not [event for event in ask(pair.actor.heard.remote()) if isinstance(event, Written)]
    ask(pair.actor.let_go.remote("push"))
    ask(pair.actor.wait_for.remote(Written))
    assert pair.holds(reserved, [4, 0, 6, 1])


def test_words_do_not_wait_for_another_pairs_chunks(pair: RayPair) -> None:
    slow, healthy = pair.connect(), pair.connect("prefill-1-cc")
    pair.begin(slow, "slow", NUM_THREADS)
    for block in range(NUM_THREADS):
        ask(pair.actor.hold.remote("push"))
        slow.push("slow", [block], block)
    ask(pair.actor.wait_until_held.remote("push"))
    pair.begin(healthy, "healthy", 1, "prefill-1-cc")
    ask(pair.actor.let_go.remote("push"))
    assert slow.written("slow")
    ask(pair.actor.wait_for.remote(Written))


def test_sound_blocks_pass_the_checksum_and_damaged_ones_are_named(checking_pair: RayPair) -> None:
    pair = checking_pair
    sender = pair.connect()
    pair.begin(sender, "sound", 2)
    sender.push("sound", [1, 2], 0)
    sender.written("sound")
    ask(pair.actor.wait_for.remote(Written))
    reserved = pair.begin(sender, "damaged", 2)
    sender.push("damaged", [1, 2], 0)
    ask(pair.actor.wait_until_answered.remote("push", 2))
    ask(pair.actor.fill.remote(reserved[1:], 0))
    sender.written("damaged")
    released = ask(pair.actor.wait_for.remote(Released))
    assert (released.attempt, released.reason) == ("damaged", ReleaseReason.HANDOFF_FAILED)
    assert released.detail == "checksum of block 1 differs"


def test_begin_is_refused_without_a_reservation(pair: RayPair) -> None:
    sender = pair.connect()
    sender.begin("a")
    pair.log.heard.wait_for(("refused", "a"))
    assert not sender.push("a", [0], 0)
    assert not sender.written("a")


def test_revoked_blocks_are_free_at_once_and_late_chunks_are_dropped(pair: RayPair) -> None:
    sender = pair.connect()
    reserved = pair.begin(sender, "a", 2)
    ask(pair.actor.hold.remote("push"))
    assert sender.push("a", [4, 5], 0)
    ask(pair.actor.wait_until_held.remote("push"))
    ask(pair.actor.give_up.remote("a"))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    ask(pair.actor.fill.remote(reserved, 0xAB))
    ask(pair.actor.let_go.remote("push"))
    pair.log.heard.wait_for(("stop", "a"))
    assert set(ask(pair.actor.bytes_of.remote(reserved))) == {0xAB}
    assert not sender.push("a", [4], 0)
    assert not sender.written("a")


def test_renewal_of_a_revoked_reservation_is_told_to_stop(pair: RayPair) -> None:
    sender = pair.connect()
    pair.begin(sender, "a", 2)
    ask(pair.actor.give_up.remote("a"))
    sender.renew("a")
    pair.log.heard.wait_for(("stop", "a"))


def test_sender_that_gives_up_frees_the_blocks(pair: RayPair) -> None:
    sender = pair.connect()
    pair.begin(sender, "a", 2)
    sender.stopped("a")
    released = ask(pair.actor.wait_for.remote(Released))
    assert released.reason is ReleaseReason.HANDOFF_FAILED
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS


def test_sender_that_gives_up_before_begin_is_answered_frees_the_blocks(pair: RayPair) -> None:
    sender = pair.connect()
    ask(pair.actor.reserve.remote("a", 2, WRITER))
    ask(pair.actor.hold.remote("begin"))
    sender.begin("a")
    ask(pair.actor.wait_until_held.remote("begin"))
    sender.stopped("a")
    ask(pair.actor.let_go.remote("begin"))
    ask(pair.actor.wait_for.remote(Released))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    assert pair.log.heard() == []


def test_closing_sender_frees_its_blocks_and_says_nothing(pair: RayPair) -> None:
    sender = pair.connect()
    pair.begin(sender, "a", 2)
    sender.close()
    ask(pair.actor.wait_for.remote(Released))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    assert pair.log.heard() == [("accepted", "a")]


def test_late_farewell_of_an_older_pair_does_not_end_the_newer(lone_pair: RayPair) -> None:
    pair = lone_pair
    older = pair.connect()
    ask(pair.actor.hold.remote("leave"))
    older.close()
    ask(pair.actor.wait_until_held.remote("leave"))
    newer = pair.connect()
    reserved = pair.begin(newer, "a", 1)
    ask(pair.actor.let_go.remote("leave"))
    ask(pair.actor.wait_until_answered.remote("leave", 1))
    newer.push("a", [6], 0)
    newer.written("a")
    ask(pair.actor.wait_for.remote(Written))
    assert pair.holds(reserved, [6])


@pytest.mark.parametrize("in_flight", [True, False])
def test_killed_actor_breaks_the_pair(lone_pair: RayPair, in_flight: bool) -> None:
    pair = lone_pair
    sender = pair.connect()
    pair.begin(sender, "a", 2)
    if in_flight:
        ask(pair.actor.hold.remote("push"))
        sender.push("a", [0], 0)
        ask(pair.actor.wait_until_held.remote("push"))
    ray.kill(pair.actor, no_restart=True)
    if not in_flight:
        sender.push("a", [0], 0)
    pair.log.wait_until_broken()
    assert not sender.push("a", [0], 0)
    assert not sender.written("a")


def test_push_beyond_the_reservation_is_an_error_and_the_pair_goes_on(pair: RayPair) -> None:
    sender = pair.connect()
    pair.begin(sender, "a", 1)
    with pytest.raises(ValueError, match="reserved 1 blocks"):
        sender.push("a", [0, 1], 0)
    sender.stopped("a")
    ask(pair.actor.wait_for.remote(Released))
    assert ask(pair.actor.num_free.remote()) == NUM_BLOCKS
    pair.begin(sender, "b", 1)


def test_nothing_is_left_in_the_object_store(pair: RayPair) -> None:
    sender = pair.connect()
    for attempt in ("a", "b", "c"):
        pair.begin(sender, attempt, 2)
        sender.push(attempt, [0], 0)
        sender.push(attempt, [1], 1)
    sender.written("a")
    sender.stopped("b")
    ask(pair.actor.give_up.remote("c"))
    assert not _until_stopped(sender, "c")
    _wait_until_store_is_empty()


def _until_stopped(sender: RaySender, attempt: str) -> bool:
    deadline = time.monotonic() + WAIT_S
    while (pushed := sender.push(attempt, [0], 0)) and time.monotonic() < deadline:
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


def test_wrong_secret_is_refused(pair: RayPair) -> None:
    stranger = identity(WRITER, secret="guessed")
    with pytest.raises(HandoffRefused, match="wrong cluster secret"):
        connect_ray(
            pair.decode, pair.decode, stranger, pair.source, pair.log, checksum=False, timeout_s=ANSWER_S
        )


def test_other_layout_is_refused_by_field(pair: RayPair) -> None:
    other = identity(WRITER, fields={"dtype": "bfloat16"})
    with pytest.raises(HandoffRefused, match="dtype differs"):
        connect_ray(
            pair.decode, pair.decode, other, pair.source, pair.log, checksum=False, timeout_s=ANSWER_S
        )


def test_actor_that_is_not_there_is_refused(ray_session: Cluster) -> None:
    with pytest.raises(HandoffRefused, match="no actor nobody"):
        connect_ray(
            "nobody",
            "d",
            identity(WRITER),
            random_storage(SMALL, 1),
            SenderLog(),
            checksum=False,
            timeout_s=5,
        )


# Which transport a pair takes.


def _connect(config: HandoffConfig, endpoint: HandoffEndpoint, decode: str) -> HandoffSender:
    source: KvStorage = random_storage(SMALL, 1)
    return connect_pair(JoinPair(decode, endpoint), identity(WRITER), source, config, SenderLog())


@pytest.mark.parametrize(
    ("transport", "unix_path"), [("ray", "\0not-there"), ("auto", "\0not-there"), ("auto", "")]
)
def test_pair_takes_ray_where_shared_memory_is_not_reached(
    pair: RayPair, transport: str, unix_path: str
) -> None:
    endpoint = HandoffEndpoint(unix_path, pair.decode)
    sender = _connect(HandoffConfig(transport=transport), endpoint, pair.decode)
    pair.own(sender)
    assert sender.transport == "ray"


@pytest.mark.parametrize(
    "endpoint", [HandoffEndpoint("\0not-there", "actor"), HandoffEndpoint("\0not-there")]
)
def test_shm_alone_reports_why_it_cannot_connect(endpoint: HandoffEndpoint) -> None:
    transport = "shm" if endpoint.actor_name else "auto"
    with pytest.raises(ConnectionRefusedError):
        _connect(HandoffConfig(transport=transport), endpoint, "decode")


@pytest.mark.parametrize(
    ("transport", "endpoint"),
    [
        ("shm", HandoffEndpoint(actor_name="a")),
        ("ray", HandoffEndpoint("\0path")),
        ("auto", HandoffEndpoint()),
    ],
)
def test_pair_without_a_common_transport_is_refused(transport: str, endpoint: HandoffEndpoint) -> None:
    with pytest.raises(HandoffRefused, match=f"offers no {transport} transport"):
        _connect(HandoffConfig(transport=transport), endpoint, "decode")
