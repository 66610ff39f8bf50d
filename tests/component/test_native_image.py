"""Images of weights: what a checkpoint was rounded to before is kept exactly, in the narrowest format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from tests.support.loaded import modules_loaded_by
from tests.support.models.model_oracle import SHAPES, load_engine, prepare, random_model
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.kernels.native.layout import Floats, Format, quantise
from twinpool.errors import ModelSourceError


def rounded(kind: GGMLQuantizationType) -> Floats:
    """Weights as a GGUF file of this kind stores them."""
    weights = np.random.default_rng(0).standard_normal((64, 256), dtype=np.float32)
    once: Floats = gguf.dequantize(gguf.quantize(weights, kind), kind)
    return once


@pytest.mark.parametrize(
    ("kind", "format_"),
    [(GGMLQuantizationType.Q4_1, Format.INT4), (GGMLQuantizationType.Q8_0, Format.INT8)],
)
def test_what_was_rounded_before_is_not_rounded_again(kind: GGMLQuantizationType, format_: Format) -> None:
    weights = rounded(kind)
    np.testing.assert_allclose(quantise(format_, weights).weights(), weights, rtol=0, atol=2e-7)


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedModel:
    return prepare(random_model(SHAPES["grouped-query"]), tmp_path)


def images(model: PreparedModel) -> list[str]:
    return sorted(file.name.split("-")[2] for file in model.folder.glob("*.image"))


def test_an_image_is_made_once_for_each_format(prepared: PreparedModel) -> None:
    names = {"auto": "int8", "bf16": "bfloat16", "int4": "int4"}
    for weights, format_ in names.items():
        engine = load_engine(prepared, dtype="bfloat16", kernels="native", weights=weights)
        assert engine.kernel.facts.weights == format_
    load_engine(prepared, dtype="float32", kernels="native")
    assert images(prepared) == ["auto", "bf16", "float32", "int4"]
    before = {file: file.stat().st_mtime_ns for file in prepared.folder.glob("*.image")}
    load_engine(prepared, dtype="bfloat16", kernels="native")
    assert {file: file.stat().st_mtime_ns for file in prepared.folder.glob("*.image")} == before


_WORK = """
import sys
from pathlib import Path
import decode_worker.actor, prefill_worker.actor
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.runner import Engine
from twinpool.kv.storage import KvStorage
model = PreparedModel.load(Path(sys.argv[1]))
layout = cache_layout(model.description, block_size=4, dtype="bfloat16")
Engine.load(model, KvStorage(layout, 16)).warm_up()
"""


def test_where_there_is_an_image_a_worker_loads_no_torch(default_model: PreparedModel) -> None:
    load_engine(default_model, dtype="bfloat16", kernels="native")
    loaded = modules_loaded_by(_WORK, str(default_model.folder))
    assert "twinpool.engine.kernels.native.kernel" in loaded
    assert not {"torch", "safetensors", "transformers"} & loaded


def test_where_no_file_can_be_written_a_worker_has_its_own_copy(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    assert load_engine(prepared, kernels="native").kernel.facts.weights == "float32"
    assert images(prepared) == []


@pytest.mark.parametrize("settings", [{"kernels": "native"}, {"weights": "int8"}, {"dtype": "int8"}])
def test_what_native_kernels_alone_can_do_is_refused_where_there_are_none(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr("twinpool.engine.kernels.native.load.native_library", lambda: None)
    with pytest.raises(ModelSourceError, match="no native kernels are built for this processor"):
        load_engine(prepared, **{"dtype": "bfloat16", **settings})
    assert load_engine(prepared, dtype="bfloat16").kernel.facts.name == "torch"
