"""Chooses a pair's transport: shared memory where the pair shares a host, Ray's object store otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from twinpool.config import HandoffConfig
from twinpool.kv.storage import KvStorage
from twinpool.session.messages import JoinPair
from twinpool.transfer.handshake import Identity
from twinpool.transfer.port import HandoffRefused, HandoffSender, SenderEvents
from twinpool.transfer.shm_sender import connect_shm

log = logging.getLogger(__name__)


class Connector(Protocol):
    """Opens, checks and warms one pair's connection."""

    def __call__(
        self,
        command: JoinPair,
        identity: Identity,
        source: KvStorage,
        config: HandoffConfig,
        events: SenderEvents,
    ) -> HandoffSender:
        """Raises HandoffRefused or OSError, which say why not."""
        ...


def pair_connection(
    connect: Connector, identity: Identity, source: KvStorage, config: HandoffConfig
) -> Callable[[JoinPair, SenderEvents], HandoffSender]:
    """A connector for one worker's own cache, as `twinpool.transfer.pairs` wants it."""

    def connect_from(command: JoinPair, events: SenderEvents) -> HandoffSender:
        return connect(command, identity, source, config, events)

    return connect_from


def connect_pair(
    command: JoinPair,
    identity: Identity,
    source: KvStorage,
    config: HandoffConfig,
    events: SenderEvents,
) -> HandoffSender:
    """Join by the configured transport; `auto` takes `shm` if the pair's socket connects, else `ray`."""
    if config.transport in ("auto", "shm") and command.endpoint.unix_path:
        try:
            return _connect_shm(command, identity, source, config, events)
        except OSError as error:
            if config.transport == "shm" or not command.endpoint.actor_name:
                raise
            log.info("no shared memory with %s (%s): taking ray", command.decode, error)
    if config.transport in ("auto", "ray") and command.endpoint.actor_name:
        # Imported here: a worker outside Ray has no use for it, and it is slow to load.
        from twinpool.transfer.ray_sender import connect_ray  # noqa: PLC0415

        return connect_ray(
            command.endpoint.actor_name,
            command.decode,
            identity,
            source,
            events,
            checksum=config.checksum,
            timeout_s=config.join_timeout_s,
        )
    raise HandoffRefused(f"the decode worker offers no {config.transport} transport")


def _connect_shm(
    command: JoinPair,
    identity: Identity,
    source: KvStorage,
    config: HandoffConfig,
    events: SenderEvents,
) -> HandoffSender:
    return connect_shm(
        command.endpoint.unix_path,
        command.decode,
        identity,
        source,
        events,
        checksum=config.checksum,
        timeout_s=config.join_timeout_s,
    )
