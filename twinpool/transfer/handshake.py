"""What the two ends of a pair check before they trust each other with memory."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twinpool.engine.fingerprint import Fingerprint, first_difference
from twinpool.protocol import HANDOFF, Versions
from twinpool.transfer.port import HandoffRefused


@dataclass(frozen=True, slots=True)
class Identity:
    """One end of a pair: its incarnation, the cluster's secret, and how its cache is laid out."""

    incarnation: str
    secret: str
    fingerprint: Fingerprint

    def hello(self) -> dict[str, Any]:
        """The opening message of the sender."""
        return {
            "protocol": [HANDOFF.oldest, HANDOFF.newest],
            "secret": self.secret,
            "incarnation": self.incarnation,
            "fingerprint": dict(self.fingerprint),
        }

    def check(self, hello: Mapping[str, Any]) -> str:
        """The other end's incarnation. Raises HandoffRefused, naming the field that differs."""
        match hello.get("protocol"):
            case [int(oldest), int(newest)] if HANDOFF.common(Versions(oldest, newest)) is not None:
                pass
            case other:
                raise HandoffRefused(f"protocol {other!r} at the sender, {HANDOFF} at the receiver")
        if not hmac.compare_digest(str(hello.get("secret", "")).encode(), self.secret.encode()):
            raise HandoffRefused("wrong cluster secret")
        theirs = hello.get("fingerprint")
        if not isinstance(theirs, Mapping):
            raise HandoffRefused("no fingerprint")
        field = first_difference(self.fingerprint, theirs)
        if field is not None:
            ours = self.fingerprint.get(field)
            raise HandoffRefused(
                f"{field} differs: {theirs.get(field)!r} at the sender, {ours!r} at the receiver"
            )
        return str(hello.get("incarnation", ""))
