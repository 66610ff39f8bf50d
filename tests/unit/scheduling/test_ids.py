"""No id is drawn twice."""

from __future__ import annotations

from router.scheduling.ids import Ids


def test_no_two_ids_are_alike_be_they_hand_offs_attempts_or_another_lifes() -> None:
    lives = [Ids("one"), Ids("another")]
    drawn = [draw() for ids in lives for _ in range(3) for draw in (ids.handoff, ids.attempt)]
    assert len(set(drawn)) == 12
