"""Bars and sparklines: what is more than nothing shows, and what is not all does not look like it."""

from __future__ import annotations

import pytest

from twinpool.cli.charts import ASCII, BLOCKS, Glyphs, bar, sparkline


def test_a_sparkline_has_a_level_for_each_value_and_blanks_for_nothing() -> None:
    assert sparkline([None, 0.0, 1.0, 4.0, 8.0], BLOCKS) == "  ▂▅█"
    assert sparkline([None, 0.0, 1.0, 4.0, 8.0], ASCII) == "  .+@"
    assert sparkline([0.0, None, -1.0], BLOCKS) == "   "
    assert sparkline([], BLOCKS) == ""


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
@pytest.mark.parametrize("first", [0, 1, 5, 99, 100, 130])
@pytest.mark.parametrize("second", [0, 1, 50, 200])
def test_a_bar_has_always_its_width_and_shows_what_there_is(first: int, second: int, glyphs: Glyphs) -> None:
    parts = bar(first, second, 100, 10, glyphs)
    assert sum(map(len, parts)) == 10
    assert bool(parts[0]) == bool(first)
    if first < 90:
        assert bool(parts[1]) == bool(second)
    assert (glyphs.parts[-1] * 10 == parts[0]) == (first >= 100)


def test_a_bar_of_nothing_is_empty() -> None:
    assert bar(0, 0, 0, 4, ASCII) == ("", "", "....")
    assert bar(5, 0, 0, 4, ASCII) == ("", "", "....")
