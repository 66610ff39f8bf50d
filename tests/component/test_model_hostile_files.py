"""Files that declare more than they hold: refused at once, since a few bytes must not cost gigabytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.support.models.tiny_models import write_folder, write_gguf
from twinpool.errors import ModelSourceError, TwinpoolError
from twinpool.prepare.pull import pull

HUGE = 1 << 62
STRING, ARRAY, UINT8 = 8, 9, 0


def header(num_tensors: int, num_values: int, *rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_values) + b"".join(rest)


def key(kind: int) -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<I", kind)


def tensor(num_dimensions: int, *sizes: int, offset: int = 0) -> bytes:
    name = struct.pack("<Q", 1) + b"w"
    dimensions = struct.pack(f"<I{len(sizes)}Q", num_dimensions, *sizes)
    return name + dimensions + struct.pack("<IQ", 0, offset)


@pytest.mark.parametrize(
    "content",
    [
        header(0, 1, key(ARRAY), struct.pack("<IQ", UINT8, HUGE)),
        header(0, 1, key(ARRAY), struct.pack("<IQ", STRING, HUGE)),
        header(0, 1, key(ARRAY), struct.pack("<IQ", ARRAY, HUGE)),
        header(0, 1, key(ARRAY), *(struct.pack("<IQ", ARRAY, 1) for _ in range(100_000))),
        header(0, 1, key(STRING), struct.pack("<Q", HUGE)),
        header(0, 1, struct.pack("<Q", HUGE)),
        header(0, HUGE),
        header(HUGE, 0),
        header(1, 0, tensor(1, HUGE)),
        header(1, 0, tensor(4, 1 << 31, 1 << 31, 1 << 31, 1 << 31)),
        header(1, 0, tensor(1 << 31)),
        header(1, 0, tensor(1, 1, offset=HUGE)),
        header(0, 1, key(99)),
        # Bytes that are there, of which each would become an object.
        header(0, 1, key(ARRAY), struct.pack("<IQ", UINT8, 5_000_000), bytes(5_000_000)),
    ],
    ids=range(14),
)
def test_a_gguf_that_declares_more_than_it_holds(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "hostile.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelSourceError, match="not a readable GGUF file"):
        pull(str(file), cache_dir=tmp_path / "cache")


def test_a_gguf_that_declares_layers_it_has_no_tensors_for(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", metadata={"llama.block_count": 1 << 24})
    with pytest.raises(ModelSourceError, match="16777216 layers are declared"):
        pull(str(file), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("num_bytes", [HUGE, (1 << 63) + 1, 10_000_000])
def test_a_safetensors_file_with_a_header_beyond_its_end(tmp_path: Path, num_bytes: int) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", num_bytes) + b"{}")
    with pytest.raises(ModelSourceError):
        pull(str(folder), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1 << 31, 1 << 31, 1 << 31], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, HUGE]},
    ],
    ids=["shape", "overflow", "offsets"],
)
def test_a_safetensors_file_with_a_tensor_beyond_its_end(tmp_path: Path, entry: dict[str, object]) -> None:
    folder = write_folder(tmp_path / "model")
    text = json.dumps({"model.embed_tokens.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(ModelSourceError):
        pull(str(folder), cache_dir=tmp_path / "cache")


def test_a_folder_that_declares_layers_it_has_no_tensors_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1 << 24}))
    with pytest.raises(ModelSourceError, match="16777216 layers are declared"):
        pull(str(folder), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    "content", ["", "{}", "[" * 100_000, '{"model": {"type": "BPE", "vocab": 5}}'], ids=range(4)
)
def test_a_tokenizer_that_is_none(tmp_path: Path, content: str) -> None:
    folder = write_folder(tmp_path / "model")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(TwinpoolError):
        pull(str(folder), cache_dir=tmp_path / "cache")
