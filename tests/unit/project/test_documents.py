"""What the documents say of the code's files is true: paths exist, and an addition touches what they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
PATH = re.compile(r"`((?:router|prefill_worker|decode_worker|twinpool|proto|scripts|deploy|docs)/[\w./-]+)`")
SOURCES = ("router", "prefill_worker", "decode_worker", "twinpool", "proto")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    text = document.read_text("utf-8")
    links = [document.parent / link for link in re.findall(r"\]\(([\w./-]+)\)", text)]
    missing = [path for path in [ROOT / name for name in PATH.findall(text)] + links if not path.exists()]
    assert missing == []


@pytest.mark.parametrize("example", ["min_p", "qwen2"])
def test_an_addition_touches_the_files_that_the_table_names(example: str) -> None:
    lines = (ROOT / "docs/architecture.md").read_text("utf-8").splitlines()
    (row,) = [line for line in lines if f"| `{example}` |" in line]
    named = {ROOT / path for path in PATH.findall(row)}
    touched = {path for folder in SOURCES for path in written_by_hand(ROOT / folder) if names(path, example)}
    assert touched >= {path for path in named if path.is_file()}
    assert [path for path in touched if path not in named and path.parent not in named] == []
    assert len(touched) <= 6


def written_by_hand(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".proto", ".cpp", ".h")]
    return [path for path in files if ROOT / "twinpool/v1" not in path.parents]


def names(path: Path, word: str) -> bool:
    return re.search(rf"\b{word}\b", path.read_text("utf-8"), re.IGNORECASE) is not None
