"""Who may join a `ray` receiver, and which transport a pair takes."""

from __future__ import annotations

import pytest

from tests.support.workers.handoff_ends import SMALL, SenderLog, identity, random_storage
from tests.support.workers.ray_pair import ANSWER_S, WRITER, RayPair
from twinpool.config import HandoffConfig
from twinpool.kv.storage import KvStorage
from twinpool.serving.cluster import Cluster
from twinpool.session.messages import JoinPair
from twinpool.transfer.connect import connect_pair
from twinpool.transfer.port import HandoffRefused, HandoffSender
from twinpool.transfer.ray_sender import connect_ray
from twinpool.types import HandoffEndpoint

# Who may join.


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
