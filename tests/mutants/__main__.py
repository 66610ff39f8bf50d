"""Plants each bug of the table in a copy of the tree, runs its tests there, and says whether they saw it.

    python -m tests.mutants [WORD ...]      only those whose names have one of these words

Before any bug is planted, all tests of the table must pass in such a copy. A bug is caught if a test fails;
if none does, it has survived, and so has one whose tests could not be run. Exits with 1 if any has survived.

Why no tool that makes mutants from the syntax, such as mutmut or cosmic-ray: of these modules they make
thousands, which take hours, and most change nothing that matters or are seen by the tests of one function.
Here each bug is one that somebody might make and breaks a rule of the system, and names the tests that guard
this rule: for the desks, state machines that drive the whole system, for minutes were it thousands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS
from tests.support.paths import ROOT

COPIED = ("router", "prefill_worker", "decode_worker", "twinpool", "tests", "pyproject.toml")
TIMEOUT_S = 240.0
"""A bug may have a test wait for ever; that, too, is seen."""
FAILED = 1
"""pytest's exit status where tests ran and some failed."""


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in a tree until the first fails: pytest's exit status and output.

    Examples are not made smaller, since nobody is to read them.
    """
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile=unshrunk"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    try:
        ran = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"no end within {TIMEOUT_S:g} s"
    return ran.returncode, ran.stdout + ran.stderr


def run_planted(mutant: Mutant | None, tests: Sequence[str]) -> tuple[int, str, float]:
    """Run tests in a copy of the tree with the bug in it, or without any: exit status, output and seconds."""
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, tree / name)
        if mutant is not None:
            (tree / mutant.path).write_text(mutant.planted())
        status, output = run_tests(tree, tests)
    return status, output, time.monotonic() - began_at


def report(mutant: Mutant) -> bool:
    """Plant one bug, and print what came of it; whether it was caught."""
    status, output, seconds = run_planted(mutant, mutant.tests)
    caught = status == FAILED
    print(
        f"{'caught' if caught else 'SURVIVED':8}  {seconds:5.1f} s  {mutant.path:34}  {mutant.name}",
        flush=True,
    )
    if status not in (0, FAILED):
        print(output[-2000:], flush=True)
    return caught


def main(words: Sequence[str]) -> int:
    mutants = [each for each in MUTANTS if not words or any(word in each.name for word in words)]
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    status, output, seconds = run_planted(None, tests)
    if status != 0:
        print(f"{output}\nthese tests must pass before a bug is planted", flush=True)
        return 1
    print(f"all pass  {seconds:5.1f} s  without a bug: {len(tests)} files of tests", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        caught = list(threads.map(report, mutants))
    print(f"{sum(caught)} of {len(caught)} caught", flush=True)
    return 0 if all(caught) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
