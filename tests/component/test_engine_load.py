"""What an engine refuses when it is loaded, and what it does first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.models.model_oracle import SHAPES, load_engine, prepare, random_model
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.port import KernelSettings
from twinpool.engine.runner import Engine
from twinpool.errors import ModelSourceError
from twinpool.kv.layout import KvLayout
from twinpool.kv.storage import KvStorage
from twinpool.worker.pulse import Pulse


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedModel:
    return prepare(random_model(SHAPES["grouped-query"]), tmp_path)


def test_a_missing_tensor_is_named(prepared: PreparedModel) -> None:
    tensors = load_file(prepared.weights_file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, prepared.weights_file)
    with pytest.raises(ModelSourceError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_engine(prepared)


def test_a_tensor_of_another_shape_is_named(prepared: PreparedModel) -> None:
    tensors = load_file(prepared.weights_file)
    tensors["model.norm.weight"] = torch.ones(3)
    save_file(tensors, prepared.weights_file)
    with pytest.raises(ModelSourceError, match=r"model\.norm\.weight has shape \(3,\)"):
        load_engine(prepared)


@pytest.mark.parametrize("damage", ["cut", "gone", "noise"])
def test_a_damaged_file_is_named(prepared: PreparedModel, damage: str) -> None:
    content = prepared.weights_file.read_bytes()
    prepared.weights_file.unlink()
    if damage != "gone":
        prepared.weights_file.write_bytes(content[:-100] if damage == "cut" else b"\xff" * 1000)
    with pytest.raises(ModelSourceError, match=r"model\.safetensors"):
        load_engine(prepared)


def test_a_cache_for_another_model_is_refused(prepared: PreparedModel) -> None:
    layout = KvLayout(num_layers=2, num_kv_heads=2, head_dim=8, block_size=4, dtype="float32")
    with pytest.raises(ModelSourceError, match="does not fit"):
        Engine.load(prepared, KvStorage(layout, 4))


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 1), (1, 2), (1, 3), (16, 1), (4, 200)])
def test_warm_up_fits_any_cache(prepared: PreparedModel, block_size: int, num_blocks: int) -> None:
    layout = cache_layout(prepared.description, block_size=block_size, dtype="bfloat16")
    Engine.load(prepared, KvStorage(layout, num_blocks)).warm_up()


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_each_layer_that_is_computed_is_told(prepared: PreparedModel, kernels: str) -> None:
    layout = cache_layout(prepared.description, block_size=1, dtype="float32")
    pulse = Pulse()
    engine = Engine.load(prepared, KvStorage(layout, 1), KernelSettings(kernels=kernels), pulse.layers)
    assert pulse.layers.value == 0
    engine.warm_up()  # one step, as there is no more room
    assert pulse.layers.value == prepared.description.num_layers
