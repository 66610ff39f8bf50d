"""Reads a model out of a folder in Hugging Face's layout; only safetensors, since pickles run code."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from twinpool.checkpoint.json_files import read_json
from twinpool.engine.models.description import ModelDescription, Role
from twinpool.engine.models.tensors import name_of
from twinpool.errors import ModelSourceError, UnsupportedModel
from twinpool.prepare.weights import SourceTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# Old checkpoints store this constant; it follows from the config.
_DERIVED = "rotary_emb.inv_freq"


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, one or the shards that the index names.

    Raises ModelSourceError if there are none.
    """
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if (folder / INDEX_FILE).is_file():
        shards = read_json(folder / INDEX_FILE).get("weight_map")
        if isinstance(shards, dict) and all(isinstance(shard, str) for shard in shards.values()):
            return [_shard(folder, name) for name in sorted(set(shards.values()))]
        raise ModelSourceError(f"{folder / INDEX_FILE} has no weight_map")
    if any(folder.glob("*.bin")):
        raise ModelSourceError(
            f"{folder} has pickle weights (.bin) only; they can run code and are not loaded"
        )
    raise ModelSourceError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")


def folder_tensors(folder: Path, model: ModelDescription) -> Iterator[SourceTensor]:
    """All weights, in the type they are stored in.

    Raises UnsupportedModel naming a tensor of another type than float32, float16 and bfloat16.
    """
    output = name_of(model.tensor_names, Role.OUTPUT, None)
    for path in weight_files(folder):
        try:
            shard: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelSourceError(f"cannot read {path}: {error}") from error
        for name in shard.keys():  # noqa: SIM118 (it is no mapping)
            tied_copy = name == output and model.tied_output
            if not (tied_copy or name.endswith(_DERIVED)):
                yield _tensor(shard, name)


def _tensor(shard: Any, name: str) -> SourceTensor:
    description = shard.get_slice(name)
    dtype, shape = description.get_dtype(), tuple(description.get_shape())
    if dtype not in _BYTES:
        raise UnsupportedModel(f"tensor type {dtype} of {name} is not supported")
    num_bytes = _BYTES[dtype]
    for size in shape:
        num_bytes *= size
    return SourceTensor(name, dtype, shape, num_bytes, partial(_read, shard, name))


def _read(shard: Any, name: str) -> memoryview:
    import torch  # noqa: PLC0415 (numpy has no bfloat16; only the bytes are wanted)

    return memoryview(shard.get_tensor(name).contiguous().view(torch.uint8).numpy()).cast("B")


def _shard(folder: Path, name: str) -> Path:
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise ModelSourceError(f"{folder / INDEX_FILE} names {name!r}, which is no file of the folder")
    return path
