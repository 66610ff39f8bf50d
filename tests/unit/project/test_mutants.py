"""The table of planted bugs fits the code as it is; `make mutants` sees whether tests catch them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS
from tests.support.paths import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_can_be_planted_and_changes_what_the_code_means(mutant: Mutant) -> None:
    sound = (ROOT / mutant.path).read_text()
    assert ast.dump(ast.parse(mutant.planted())) != ast.dump(ast.parse(sound))


def test_every_bug_has_a_name_of_its_own_and_tests_that_are_there() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    missing = {test for mutant in MUTANTS for test in mutant.tests if not (ROOT / test).is_file()}
    assert not missing


@pytest.mark.parametrize(("old", "times"), [("no such text", 0), ("self", 2)])
def test_a_bug_that_fits_nowhere_or_in_two_places_is_not_planted(
    old: str, times: int, tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text("self.self")
    mutant = Mutant("unfit", "code.py", old, "", ())
    with pytest.raises(ValueError, match=f"{times} times"):
        mutant.planted(tmp_path)
