"""Room that is held for a request which has been overtaken for long enough: pure.

Of the requests that have found no room for overtake_s, the one that arrived first holds a claim: on the
decode worker with the most room when the claim was made, where all that is freed from then on is for it; and
once it fits there, on the prefill worker with the least to read. Those that arrived later are placed on these
two only if it fits beside them, and on others as ever. So both sides wait for a bounded time: the one until
what was on one worker has ended; the others, at worst, until those that arrived before them are placed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.scheduling.fleet import Fleet, Worker
from router.scheduling.phases import Phase
from router.scheduling.placement import has_room, reserved_tokens
from router.scheduling.requests import Choice


@dataclass(frozen=True, slots=True)
class Claim:
    """What is held for a choice now. decode, prefill: None while nothing is held on that side."""

    choice: Choice
    decode: Worker | None
    prefill: Worker | None
    most_prompts: int
    most_rows: int

    @property
    def over(self) -> bool:
        """Whether its choice is placed."""
        return self.choice.phase is not Phase.QUEUED

    def permits(self, choice: Choice, prefill: Worker, decode: Worker | None) -> bool:
        """Whether a choice may be placed there. Canaries may: pairs wait for them, and they are small."""
        if choice.request.is_canary or choice.place <= self.choice.place:
            return True
        if prefill is self.prefill and not self._reads_beside(choice, prefill):
            return False
        return decode is None or decode is not self.decode or self._fits_beside(choice, decode)

    def _reads_beside(self, choice: Choice, prefill: Worker) -> bool:
        num_blocks = sum(prefill.blocks_for(each.num_tokens) for each in (choice, self.choice))
        return len(prefill.charged) + 1 < self.most_prompts and num_blocks <= prefill.blocks_free

    def _fits_beside(self, choice: Choice, decode: Worker) -> bool:
        num_blocks = sum(decode.blocks_for(reserved_tokens(each)) for each in (choice, self.choice))
        return decode.num_rows + 1 < self.most_rows and decode.may_reserve(num_blocks)


class Claims:
    """Makes claims, one at a time, and keeps each on its decode worker for as long as that takes requests.

    An older request that comes back to the queue has its claim first; the other's is where it was, then.
    """

    def __init__(self, fleet: Fleet, *, most_prompts: int, most_rows: int, overtake_s: float) -> None:
        self._fleet = fleet
        self._most_prompts = most_prompts
        self._most_rows = most_rows
        self._overtake_s = overtake_s
        self._held: dict[Choice, Worker] = {}

    def current(self, queue: Iterable[Choice], now: float) -> Claim | None:
        """The claim of the queued choice that arrived first of those that may be overtaken no more."""
        waiting = [choice for choice in queue if self._is_overdue(choice, now)]
        self._held = {choice: decode for choice, decode in self._held.items() if choice in waiting}
        choice = min(waiting, key=lambda each: each.place, default=None)
        if choice is None:
            return None
        decode = self._decode_for(choice) if choice.needs_decode else None
        prefill = None
        if not choice.needs_decode or (decode and self._has_room(decode, choice)):
            prefill = self._prefill_for(choice, decode)
        return Claim(choice, decode, prefill, self._most_prompts, self._most_rows)

    def _is_overdue(self, choice: Choice, now: float) -> bool:
        since = choice.blocked_since
        return not choice.request.is_canary and since is not None and now - since >= self._overtake_s

    def _has_room(self, decode: Worker, choice: Choice) -> bool:
        return has_room(decode, choice, reserved_tokens(choice), self._most_rows)

    def _decode_for(self, choice: Choice) -> Worker | None:
        workers = [pair.decode for pair in self._fleet.pairs() if pair.usable and pair.decode.takes_new]
        workers = [each for each in workers if choice.most_tokens <= each.capacity_tokens]
        held = self._held.get(choice)
        if held not in workers:
            held = max(workers, key=lambda each: each.blocks_free, default=None)
        if held is not None:
            self._held[choice] = held
        return held

    def _prefill_for(self, choice: Choice, decode: Worker | None) -> Worker | None:
        pairs = [pair for pair in self._fleet.pairs() if pair.usable and decode in (None, pair.decode)]
        workers = [pair.prefill for pair in pairs if pair.prefill.takes_new]
        workers = [each for each in workers if choice.num_tokens <= each.capacity_tokens]
        return min(workers, key=lambda each: sum(each.charged.values()), default=None)
