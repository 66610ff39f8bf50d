"""One planted bug, and the tests that are to see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT


@dataclass(frozen=True, slots=True)
class Mutant:
    """name: what is broken, in words. path: of the file, from the root of the tree.

    old: occurs once in the file; new: what takes its place. tests: files of tests, of which one must fail.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, root: Path = ROOT) -> str:
        """The file's text with the bug in it. Raises ValueError where the old text does not occur once."""
        text = (root / self.path).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} has {self.old!r} {text.count(self.old)} times")
        return text.replace(self.old, self.new)
