"""What a model's name means, and when its prepared form is out of date."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinpool.errors import ModelSourceError
from twinpool.prepare.sources import (
    KNOWN_MODELS,
    FolderSource,
    GgufSource,
    HubSource,
    cache_key,
    display_name,
    find_source,
)


def test_a_known_name_comes_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2-135m-instruct").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_source("smollm2-135m-instruct") is KNOWN_MODELS["smollm2-135m-instruct"]


def test_a_path_that_exists_comes_before_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_source("owner/name") == FolderSource(tmp_path.resolve() / "owner" / "name")
    assert find_source("owner/other") == HubSource("owner/other")


def test_a_gguf_file_is_a_source(tmp_path: Path) -> None:
    file = tmp_path / "tiny.Q4_0.gguf"
    file.touch()
    assert find_source(str(file)) == GgufSource(file.resolve())
    assert display_name(GgufSource(file)) == "tiny.Q4_0"


@pytest.mark.parametrize("name", ["no-such-model", "./no/folder", "/no/such/folder", "a/b/c", "", "../name"])
def test_a_name_that_means_nothing_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ModelSourceError, match="smollm2-135m-instruct"):
        find_source(name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelSourceError, match="gguf"):
        find_source(str(tmp_path / "model.bin"))


def test_a_changed_file_changes_the_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = FolderSource(tmp_path)
    key = cache_key(source)
    assert cache_key(source) == key
    (tmp_path / "notes.txt").write_text("not part of the model")
    assert cache_key(source) == key
    os.utime(tmp_path / "config.json", ns=(1, 1))
    touched = cache_key(source)
    (tmp_path / "config.json").write_text("{ }")
    os.utime(tmp_path / "config.json", ns=(1, 1))
    longer = cache_key(source)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert len({key, touched, longer, cache_key(source)}) == 4


def test_folders_of_one_name_have_different_keys(tmp_path: Path) -> None:
    keys = set()
    for parent in ("a", "b"):
        (tmp_path / parent / "model").mkdir(parents=True)
        keys.add(cache_key(FolderSource(tmp_path / parent / "model")))
    assert len(keys) == 2


def test_a_key_is_one_plain_folder_name() -> None:
    key = cache_key(HubSource("owner/na.me"))
    assert key.startswith("owner--na.me-")
    assert Path(key).name == key
