"""A prepared model appears whole or not at all, whatever ends the pull."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from twinpool.checkpoint.cache import models_folder
from twinpool.checkpoint.estimate import find_description
from twinpool.errors import ModelSourceError
from twinpool.prepare import convert
from twinpool.prepare.progress import Progress, Silent
from twinpool.prepare.pull import prepared_path, pull
from twinpool.prepare.sources import FolderSource, Source


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def visible(cache_dir: Path) -> list[str]:
    """What a pull left in the cache, but for the empty lock files."""
    return sorted(file.name for file in models_folder(cache_dir).iterdir() if file.suffix != ".lock")


def make(_source: Source, scratch: Path, progress: Progress) -> Path:
    made = scratch / "prepared"
    made.mkdir()
    (made / "model.safetensors").write_text("weights")
    (made / "prepared.json").write_text("{}")
    return made


def test_a_model_is_prepared_once(source: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "prepare", make)
    assert prepared_path(source, cache_dir) is None
    folder = pull(source, cache_dir=cache_dir)
    assert (folder / "model.safetensors").read_text() == "weights"
    assert visible(cache_dir) == [folder.name]
    assert prepared_path(source, cache_dir) == folder
    monkeypatch.setattr(convert, "prepare", pytest.fail)
    assert pull(source, cache_dir=cache_dir) == folder


def test_a_changed_source_is_prepared_anew(
    source: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "prepare", make)
    before = pull(source, cache_dir=cache_dir)
    Path(source, "config.json").write_text('{"changed": 1}')
    assert prepared_path(source, cache_dir) is None
    assert pull(source, cache_dir=cache_dir) != before


@pytest.mark.parametrize("error", [ModelSourceError("broken"), KeyboardInterrupt(), OSError(28, "disk full")])
def test_a_failed_pull_leaves_nothing(
    source: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(source: Source, scratch: Path, progress: Progress) -> Path:
        make(source, scratch, progress)
        raise error

    monkeypatch.setattr(convert, "prepare", fail)
    with pytest.raises((ModelSourceError, KeyboardInterrupt)):
        pull(source, cache_dir=cache_dir)
    assert visible(cache_dir) == []
    assert prepared_path(source, cache_dir) is None


def test_what_a_killed_pull_left_is_cleared_by_the_next(
    source: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "prepare", make)
    folder = pull(source, cache_dir=cache_dir)
    left = folder.parent / f".{folder.name}.killed.tmp"
    left.mkdir()
    (folder / "prepared.json").unlink()  # as if the folder were unfinished
    assert prepared_path(source, cache_dir) is None
    other = folder.parent / ".another-model.running.tmp"
    other.mkdir()
    assert pull(source, cache_dir=cache_dir) == folder
    assert visible(cache_dir) == [other.name, folder.name]


def test_two_pulls_at_once_prepare_once(
    source: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on, calls = threading.Event(), threading.Event(), []

    def slow(source: Source, scratch: Path, progress: Progress) -> Path:
        calls.append(scratch)
        inside.set()
        assert go_on.wait(10)
        return make(source, scratch, progress)

    monkeypatch.setattr(convert, "prepare", slow)
    folders: list[Path] = []
    pulls = [
        threading.Thread(target=lambda: folders.append(pull(source, cache_dir=cache_dir))) for _ in range(2)
    ]
    for thread in pulls:
        thread.start()
    assert inside.wait(10)
    go_on.set()
    for thread in pulls:
        thread.join(20)
    assert len(calls) == 1
    assert folders == [prepared_path(source, cache_dir)] * 2


def test_a_prepared_folder_is_itself_a_model(tmp_path: Path) -> None:
    made = make(FolderSource(tmp_path), tmp_path, Silent())
    assert prepared_path(str(made), tmp_path / "cache") == made.resolve()


def test_the_cache_follows_the_xdg_specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models_folder(None) == tmp_path / "xdg" / "twinpool" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_folder(None) == tmp_path / ".cache" / "twinpool" / "models"
    assert models_folder(tmp_path / "given") == tmp_path / "given" / "twinpool" / "models"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, as in many containers."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("ask", [pull, prepared_path, find_description])
def test_a_user_without_a_home_is_told_what_to_set(nobody: None, ask: Callable[[str], object]) -> None:
    default = "smollm2-135m-instruct"
    for model, advice in (
        (default, "'~/.cache': set HOME, or name a folder with --cache-dir"),
        ("~/model", "'~/model': set HOME"),
        ("~nobody-of-this-name/model", "'~nobody-of-this-name/model'"),
    ):
        with pytest.raises(ModelSourceError, match=f"^no home folder is known for {re.escape(advice)}$"):
            ask(model)


def test_a_user_without_a_home_may_name_a_folder(nobody: None, source: str, cache_dir: Path) -> None:
    assert prepared_path(source, cache_dir) is None


def test_a_hub_model_is_not_fetched_into_a_folder_named_as_home_is(nobody: None, cache_dir: Path) -> None:
    with pytest.raises(ModelSourceError, match="set HOME, or name the hub's cache with HF_HOME"):
        pull("owner/name", cache_dir=cache_dir)


def test_where_the_packages_of_workers_are_missing_a_pull_says_so(
    source: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "twinpool.prepare.convert", None)
    with pytest.raises(ModelSourceError, match=r"not prepared yet.*twinpool\[worker\]"):
        pull(source, cache_dir=cache_dir)
