"""Workers leave their seats, or are renewed: empty first, within a bound, and no other life for one."""

from __future__ import annotations

import pytest

from router.pools import keeper
from router.scheduling.commands import Drained
from tests.support.router.keeping import Keep, rest, until
from twinpool.types import Pool


async def test_a_removed_worker_drains_and_ends_and_its_seat_is_gone(keep: Keep) -> None:
    kept = await keep(1, 2)
    life = kept.launcher.life("decode-1")
    kept.keeper.remove(kept.roster.seats["decode-1"])
    assert kept.dispatcher.drains == [("decode-1", 4.0)]
    await rest()
    assert not life.is_over
    kept.says_empty("decode-1")
    await until(lambda: "decode-1" not in kept.roster.seats)
    assert life.stopped
    assert kept.launcher.num_starts == 3
    assert kept.dispatcher.closed == ["decode-1"]


async def test_a_renewed_worker_drains_and_is_started_anew(keep: Keep) -> None:
    kept = await keep()
    life = kept.launcher.life("decode-0")
    kept.keeper.renew(kept.roster.seats["decode-0"])
    kept.says_empty("decode-0")
    other = await kept.is_another_life("decode-0", life)
    assert life.stopped
    await rest()
    assert not other.is_over
    assert kept.restarts(Pool.DECODE, "renewed") == 1


async def test_an_older_life_is_not_what_is_empty(keep: Keep) -> None:
    kept = await keep()
    kept.keeper.renew(kept.roster.seats["decode-0"])
    kept.keeper.drained(Drained("decode-0", "an older one"))
    kept.keeper.drained(Drained("decode-7", "nobody"))
    await rest()
    assert not kept.launcher.life("decode-0").is_over


async def test_a_worker_that_never_gets_empty_is_ended_in_the_end(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "DRAIN_MARGIN_S", -4.0)
    kept = await keep()
    life = kept.launcher.life("decode-0")
    kept.keeper.renew(kept.roster.seats["decode-0"])
    await kept.is_another_life("decode-0", life)
    assert life.killed
    assert "long after its grace period" in kept.roster.seats["decode-0"].reason


async def test_a_removed_worker_that_dies_while_it_drains_is_not_replaced(keep: Keep) -> None:
    kept = await keep(1, 2)
    kept.keeper.remove(kept.roster.seats["decode-1"])
    kept.launcher.life("decode-1").ended.set_result("killed")
    await until(lambda: "decode-1" not in kept.roster.seats)
    assert kept.launcher.num_starts == 3


async def test_a_renewed_worker_may_be_removed_while_it_drains(keep: Keep) -> None:
    kept = await keep(1, 2)
    seat = kept.roster.seats["decode-1"]
    kept.keeper.renew(seat)
    kept.keeper.remove(seat)
    kept.says_empty("decode-1")
    await until(lambda: "decode-1" not in kept.roster.seats)
    assert kept.launcher.num_starts == 3


async def test_a_worker_that_is_starting_is_removed_at_once(keep: Keep) -> None:
    kept = await keep()
    kept.launcher.may_start.clear()
    kept.keeper.add(Pool.DECODE, 1)
    seat = kept.roster.seats["decode-1"]
    await until(lambda: kept.launcher.num_starts == 3)
    kept.keeper.renew(seat)
    kept.keeper.remove(seat)
    await until(lambda: "decode-1" not in kept.roster.seats)
    assert kept.dispatcher.drains == []


async def test_a_seat_whose_worker_is_dead_is_removed_at_once(keep: Keep) -> None:
    kept = await keep(1, 2)
    kept.launcher.may_start.clear()
    kept.launcher.life("decode-1").ended.set_result("gone")
    await until(lambda: not kept.is_up("decode-1"))
    kept.keeper.remove(kept.roster.seats["decode-1"])
    await until(lambda: "decode-1" not in kept.roster.seats)
    assert kept.is_up("prefill-0", "decode-0")
