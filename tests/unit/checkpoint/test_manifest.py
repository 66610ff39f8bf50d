"""The description of a prepared folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.models.llama_config import LLAMA
from twinpool.checkpoint.manifest import Manifest
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.errors import ModelSourceError

_MANIFEST = Manifest(
    name="tiny",
    source="a test",
    weights_sha256="abc",
    bos_token_id=None,
    eos_token_ids=(2, 5),
    adds_bos=False,
    special_tokens={"eos_token": "</s>"},
)


def test_a_prepared_folder_is_described_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    _MANIFEST.write(tmp_path)
    model = PreparedModel.load(tmp_path)
    assert model.manifest == _MANIFEST
    assert (model.name, model.digest, model.bos_token_id, model.eos_token_ids) == (
        "tiny",
        "abc",
        None,
        (2, 5),
    )
    assert model.weights_file == tmp_path / "model.safetensors"


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    _MANIFEST.write(tmp_path)
    written = json.loads((tmp_path / "prepared.json").read_text())
    (tmp_path / "prepared.json").write_text(json.dumps(written | {"format_version": 0}))
    with pytest.raises(ModelSourceError, match="pull the model again"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("field", ["eos_token_ids", "weights_sha256"])
def test_a_damaged_description_is_refused(tmp_path: Path, field: str) -> None:
    _MANIFEST.write(tmp_path)
    written = json.loads((tmp_path / "prepared.json").read_text())
    del written[field]
    (tmp_path / "prepared.json").write_text(json.dumps(written))
    with pytest.raises(ModelSourceError, match="damaged"):
        Manifest.load(tmp_path)
