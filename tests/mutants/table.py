"""The bugs, by what they break.

Their texts are as short as they can be told apart by, so that other changes of a line leave them alone.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PREFILL, DECODE = "prefill_worker/desk.py", "decode_worker/desk.py"
MOVES, BATCH, HANDOFF = "decode_worker/moves.py", "decode_worker/batch.py", "twinpool/worker/handoff.py"
ATTEMPTS, RESERVATIONS, POOL = (
    "router/scheduling/attempts.py",
    "twinpool/kv/reservations.py",
    "twinpool/kv/pool.py",
)
READING = ("tests/property/test_prefill_desk_machine.py",)
SYSTEM = ("tests/property/test_scheduler_machine.py",)
DRAINING = ("tests/property/test_draining.py",)
HELD = ("tests/property/test_reservations_machine.py",)
OWNED = ("tests/property/test_pool_machine.py",)
STEPPING = ("tests/unit/workers/test_decode_desk.py",)
TOKENS = ("tests/unit/scheduling/test_scheduler.py",)
LEAVING = ("tests/unit/scheduling/test_draining.py",)
RESERVED = ("tests/unit/kv/test_reservations.py",)
GIVEN_UP = ("tests/unit/kv/test_reservations_given_up.py",)
PAIRING = ("tests/unit/scheduling/test_pairing.py",)
LOSSES = ("tests/unit/scheduling/test_losses.py",)
PLACEMENT = ("tests/unit/scheduling/test_placement.py",)

DESKS = (
    Mutant(
        "prompts are read in the order in which they come", PREFILL, "item[1].command.place", "0", READING
    ),
    Mutant(
        "prompts overtake one that waits for blocks",
        PREFILL,
        "if prompt.lease is None:\n                return",
        "if prompt.lease is None:\n                continue",
        READING,
    ),
    Mutant(
        "a prompt gets a block too few",
        PREFILL,
        "blocks_for(len(prompt.token_ids)",
        "blocks_for(len(prompt.token_ids) - 1",
        READING,
    ),
    Mutant("reservations are never renewed", PREFILL, ">= self._limits.renewal_s", "< 0", READING),
    Mutant(
        "a silent decode worker is waited for without end",
        PREFILL,
        "> self._limits.accept_timeout_s",
        "> 1e9",
        READING,
    ),
    Mutant(
        "a prompt that was accepted expires all the same",
        PREFILL,
        "prompt.handoff.state is State.ASKED\n",
        "prompt.handoff.state is not State.OVER\n",
        READING,
    ),
    Mutant(
        "a broken pair's prompts are read on", PREFILL, "prompt.command.decode == decode", "False", READING
    ),
    Mutant(
        "a cancelled prompt's hand-off goes on",
        PREFILL,
        "self._words += prompt.handoff.give_up()",
        "pass",
        READING,
    ),
    Mutant("an ended prompt keeps its blocks", PREFILL, "self._pool.release(prompt.lease)", "pass", READING),
    Mutant(
        "a row is stepped without a block for it",
        DECODE,
        "row.length > len(",
        "row.length > 1 + len(",
        SYSTEM,
    ),
    Mutant("a row that gets no block is stepped", DECODE, "if row.attempt not in short}", "}", SYSTEM),
    Mutant("nobody hears of paused rows", DECODE, "if short:", "if False:", SYSTEM),
    Mutant("a dropped row keeps its blocks", DECODE, "self._say(RowLeft(", "_ = (RowLeft(", SYSTEM),
    Mutant(
        "a dropped row is stepped on",
        DECODE,
        "self._batch.leave(attempt)\n        self._moves",
        "self._moves",
        SYSTEM,
    ),
    Mutant("a row that has moved is stepped on", BATCH, " and not row.moved", "", STEPPING),
    Mutant(
        "a block is copied before it is full",
        MOVES,
        "end = num_cached if is_last else",
        "end = num_cached if True else",
        DRAINING,
    ),
    Mutant(
        "a row's last block is not copied",
        MOVES,
        "blocks_for(row.length - 1,",
        "(-1 + row.length - 1) // (",
        DRAINING,
    ),
)


SCHEDULER = (
    Mutant(
        "the queue is in the order of coming",
        "router/scheduling/waiting.py",
        ", choice.place)",
        ", 0)",
        SYSTEM,
    ),
    Mutant(
        "resumed requests wait behind new ones",
        "router/scheduling/waiting.py",
        "not choice.log",
        "bool(choice.log)",
        SYSTEM,
    ),
    Mutant(
        "every request gets the same place", "router/scheduling/place.py", "next(self._numbers)", "1", SYSTEM
    ),
    Mutant(
        "a pair that no canary has passed serves",
        "router/scheduling/fleet.py",
        "return self.proven and",
        "return bool(self.transport) and",
        PAIRING,
    ),
    Mutant(
        "a draining worker is given new requests",
        "router/scheduling/fleet.py",
        "return not (self.draining or",
        "return not (",
        SYSTEM,
    ),
    Mutant(
        "a worker that stands still is given new requests",
        "router/scheduling/fleet.py",
        " or self.stuck)",
        ")",
        SYSTEM,
    ),
    Mutant(
        "the last free block may be given away",
        "router/scheduling/fleet.py",
        "num_rows=self.load.running",
        "num_rows=0",
        PLACEMENT,
    ),
    Mutant(
        "the busiest prefill worker is chosen",
        "router/scheduling/placement.py",
        "sum(pair.prefill.charged.values()),",
        "-sum(pair.prefill.charged.values()),",
        PLACEMENT,
    ),
    Mutant(
        "waiting rows do not count in placement",
        "router/scheduling/fleet.py",
        "self.load.waiting + len(self.charged)",
        "len(self.charged)",
        PLACEMENT,
    ),
    Mutant(
        "the overdue request may be overtaken for ever",
        "router/scheduling/claims.py",
        "now - since >= self._overtake_s",
        "False",
        SYSTEM,
    ),
    Mutant(
        "nobody may pass an overdue request",
        "router/scheduling/claims.py",
        "decode is not self.decode or ",
        "",
        PLACEMENT,
    ),
    Mutant(
        "attempts are made without bound",
        ATTEMPTS,
        "or choice.num_failed_attempts >= self._most_attempts",
        "",
        SYSTEM,
    ),
    Mutant(
        "every set-back counts as a failure",
        ATTEMPTS,
        "num_failed_attempts += setback in COUNTED",
        "num_failed_attempts += 1",
        SYSTEM,
    ),
    Mutant(
        "a resumed attempt starts from the prompt",
        ATTEMPTS,
        "output_ids=tuple(first.log),",
        "output_ids=(),",
        SYSTEM,
    ),
    Mutant(
        "a set-back attempt is not dropped",
        ATTEMPTS,
        "        self.drop_move(choice)\n        self._withdraw(choice, held_by)\n",
        "        self.drop_move(choice)\n",
        SYSTEM,
    ),
    Mutant(
        "a late token is taken again",
        "router/scheduling/scheduler.py",
        "row.position == len(choice.log)",
        "True",
        TOKENS,
    ),
    Mutant(
        "deadlines pass unseen",
        "router/scheduling/requests.py",
        "if now < self.expires_at:",
        "if True:",
        SYSTEM,
    ),
    Mutant(
        "the oldest row is preempted",
        "router/scheduling/scheduler.py",
        "self._attempts.set_back(placed[-1]",
        "self._attempts.set_back(placed[0]",
        SYSTEM,
    ),
    Mutant(
        "rows are preempted though blocks come back",
        "router/scheduling/scheduler.py",
        "decode.leaving or decode.load",
        "decode.load",
        SYSTEM,
    ),
    Mutant(
        "a draining worker counts as empty with rows on it",
        "router/scheduling/draining.py",
        "if self._on(worker) or self._arriving_from",
        "if self._arriving_from",
        LEAVING,
    ),
    Mutant(
        "what a draining worker has is never set back",
        "router/scheduling/draining.py",
        "if now >= worker.drains_until:",
        "if False:",
        LEAVING,
    ),
    Mutant(
        "a lost worker's requests are left with it",
        "router/scheduling/scheduler.py",
        "self._take_away(worker, (Phase.HANDING_OFF, Phase.DECODING), down.reason, now)",
        "pass",
        SYSTEM,
    ),
    Mutant(
        "a lost session counts as a dead process",
        "router/scheduling/scheduler.py",
        "self._placed.no_word_follows(worker.charged)",
        "self._pairing.worker_gone(worker.pool, worker.incarnation)",
        LOSSES,
    ),
    Mutant(
        "a pair whose canary failed is left open",
        "router/scheduling/pairing.py",
        "self._outbox.send(pair.prefill.worker_id, m.LeavePair(decode_incarnation))",
        "pass",
        PAIRING,
    ),
)
KV = (
    Mutant(
        "a hand-off is granted twice",
        RESERVATIONS,
        "if handoff in self._reserved or attempt in self._rows:",
        "if False:",
        RESERVED,
    ),
    Mutant(
        "rows get no block in reserve",
        RESERVATIONS,
        "free=free, num_rows=num_rows",
        "free=free, num_rows=0",
        HELD,
    ),
    Mutant(
        "revoked blocks are free while they are written",
        RESERVATIONS,
        "if held.stage is not Stage.WRITING:\n            self._release",
        "if True:\n            self._release",
        HELD,
    ),
    Mutant(
        "a row enters before its cache is written",
        RESERVATIONS,
        "if held.stage is not Stage.WRITTEN or held.admit",
        "if held.admit",
        HELD,
    ),
    Mutant(
        "a row enters with part of its cache",
        RESERVATIONS,
        "if held.num_written < needed:",
        "if False:",
        RESERVED,
    ),
    Mutant(
        "any writer may speak for another",
        RESERVATIONS,
        "if held is None or held.writer != writer:",
        "if held is None:",
        RESERVED,
    ),
    Mutant(
        "progress does not renew",
        RESERVATIONS,
        "        if self.blocks(handoff, writer) is not None:",
        "        if False:",
        GIVEN_UP,
    ),
    Mutant("nothing expires", RESERVATIONS, "now >= held.expires_at:", "False:", HELD),
    Mutant("a reservation expires at once", RESERVATIONS, "now >= held.expires_at:", "True:", GIVEN_UP),
    Mutant(
        "a quarantine is reported once",
        RESERVATIONS,
        "max(held.since, held.reported_at)",
        "(held.since if held.reported_at < 0 else now)",
        GIVEN_UP,
    ),
    Mutant("an evicted row keeps its blocks", POOL, "self._free.extend(own)", "pass", OWNED),
    Mutant("a shared block is free while others read it", POOL, "if not self._pins[block]]", "]", OWNED),
    Mutant(
        "a block is leased twice", POOL, "            self._free.popleft()\n", "            pass\n", OWNED
    ),
)
MUTANTS = (*DESKS, *SCHEDULER, *KV)
