"""Carries out what a desk says to decode workers and copies to them, over the pairs that are open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from twinpool.transfer.port import HandoffSender
from twinpool.transfer.words import Begin, GiveUp, HandoffWord, PairLost, Renew
from twinpool.worker.turn import Copied, Copy, CopyEnd, CopyFailed, CopyStopped

log = logging.getLogger(__name__)


class Courier:
    """Used by the engine's thread.

    senders: the open pairs by decode incarnation, filled by whoever joins them. tell: takes to the desk that
    there is no such pair.
    """

    def __init__(self, senders: Mapping[str, HandoffSender], tell: Callable[[PairLost], None]) -> None:
        self._senders = senders
        self._tell = tell

    def say(self, word: HandoffWord) -> None:
        """Say a word to its decode worker."""
        sender = self._senders.get(word.decode)
        match word:
            case Begin(decode) if sender is None:
                self._tell(PairLost(decode, f"no pair with {decode}"))
            case _ if sender is None:
                pass  # whoever lost the pair has told the desk
            case Begin(handoff=handoff):
                sender.begin(handoff)
            case Renew(handoff=handoff):
                sender.renew(handoff)
            case GiveUp(handoff=handoff):
                sender.stopped(handoff)

    def copy(self, copy: Copy) -> CopyEnd:
        """Make a copy."""
        sender = self._senders.get(copy.decode)
        if sender is None:
            return CopyStopped(copy)
        try:
            went = not copy.blocks or sender.push(copy.handoff, copy.blocks, copy.first)
            went = went and (not copy.is_last or sender.written(copy.handoff))
        except Exception as error:
            about = {"handoff": copy.handoff}
            log.exception("hand-off %s: a copy of its cache failed", copy.handoff, extra=about)
            return CopyFailed(copy, type(error).__name__)
        return Copied(copy) if went else CopyStopped(copy)
