"""GGUF files: each tensor type comes out as transformers reads it, everything else is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.support.models import tiny_tokenizers
from tests.support.models.tiny_models import write_gguf
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.errors import ModelSourceError, UnsupportedModel
from twinpool.prepare.pull import pull

_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


@pytest.mark.parametrize("name", _TYPES)
def test_weights_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", GGMLQuantizationType[name])
    ours = load_file(pull(str(file), cache_dir=tmp_path) / "model.safetensors")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).state_dict()
    theirs.pop("lm_head.weight")  # tied
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", _TYPES)
def test_a_matrix_without_rotation_is_what_gguf_itself_decodes(tmp_path: Path, name: str) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", GGMLQuantizationType[name])
    ours = load_file(pull(str(file), cache_dir=tmp_path) / "model.safetensors")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}["blk.1.ffn_down.weight"]
    decoded = gguf.dequantize(stored.data, stored.tensor_type)
    assert torch.equal(ours["model.layers.1.mlp.down_proj.weight"], torch.from_numpy(decoded.copy()))


def test_an_output_matrix_of_its_own_is_kept(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tensors={"output.weight": (263, 128)})
    folder = pull(str(file), cache_dir=tmp_path)
    assert not PreparedModel.load(folder).description.tied_output
    assert "lm_head.weight" in load_file(folder / "model.safetensors")


def test_the_tokenizer_is_the_one_of_transformers(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = pull(str(file), cache_dir=tmp_path)
    ours = Tokenizer.load(folder)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in ("the the", "é日本<|im_end|>\n\n12  3"):
        assert ours.encode(text) == theirs(text).input_ids
    messages = [{"role": "user", "content": "the"}]
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)["input_ids"]
    assert PreparedModel.load(folder).eos_token_ids == (theirs.eos_token_id,)


def sentencepiece_metadata() -> dict[str, Any]:
    pieces = tiny_tokenizers.pieces_of(tiny_tokenizers.llama_2())
    return {
        "llama.vocab_size": len(pieces),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.token_type": [kind_of(piece) for piece in pieces],
        "tokenizer.ggml.bos_token_id": pieces.index("<s>"),
        "tokenizer.ggml.eos_token_id": pieces.index("</s>"),
    }


def test_a_sentencepiece_vocabulary_too_and_its_bos(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata()
    embedding = {"token_embd.weight": (metadata["llama.vocab_size"], 128)}
    file = write_gguf(tmp_path / "tiny.gguf", metadata=metadata, tensors=embedding)
    folder = pull(str(file), cache_dir=tmp_path)
    ours = Tokenizer.load(folder)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in ("the bat", "é ☕ 😀", "</s>a"):
        ids = ours.encode(text)
        assert ids == theirs(text).input_ids
        assert ids[0] == ours.id_of("<s>")
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert PreparedModel.load(folder).manifest.adds_bos


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [("smollm", ["ĠĠ", "1", "2"]), ("gpt-2", ["Ġ", "Ġ", "1", "2"]), (None, ["Ġ", "Ġ", "1", "2"])],
)
def test_numbers_are_split_as_the_file_declares(tmp_path: Path, pre: str | None, pieces: list[str]) -> None:
    known = [
        *tiny_tokenizers.pieces_of(tiny_tokenizers.byte_level(), with_added_tokens=False),
        "ĠĠ",
        "<|im_end|>",
    ]
    metadata = {
        "llama.vocab_size": len(known),
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": known,
        "tokenizer.ggml.token_type": [1] * (len(known) - 1) + [3],
        "tokenizer.ggml.merges": ["Ġ Ġ"],
        "tokenizer.ggml.eos_token_id": len(known) - 1,
    }
    embedding = {"token_embd.weight": (len(known), 128)}
    file = write_gguf(tmp_path / "tiny.gguf", metadata=metadata, tensors=embedding)
    tokenizer = Tokenizer.load(pull(str(file), cache_dir=tmp_path))
    assert [tokenizer.piece(token_id) for token_id in tokenizer.encode("  12")] == pieces


def byte_level_file(folder: Path, metadata: dict[str, object]) -> Path:
    """A GGUF whose vocabulary has a word that no merge makes, and BOS."""
    known = [
        *tiny_tokenizers.pieces_of(tiny_tokenizers.byte_level(), with_added_tokens=False),
        "hello",
        "<|begin|>",
        "<|im_end|>",
    ]
    values = {
        "llama.vocab_size": len(known),
        "tokenizer.ggml.tokens": known,
        "tokenizer.ggml.token_type": [1] * (len(known) - 2) + [3, 3],
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.bos_token_id": len(known) - 2,
        "tokenizer.ggml.eos_token_id": len(known) - 1,
    }
    embedding = {"token_embd.weight": (len(known), 128)}
    return write_gguf(folder / "tiny.gguf", metadata=values | metadata, tensors=embedding)


@pytest.mark.parametrize(
    ("metadata", "pieces"),
    [
        ({"tokenizer.ggml.pre": "llama-bpe"}, ["<|begin|>", "hello"]),
        ({"tokenizer.ggml.pre": "llama3", "tokenizer.ggml.add_bos_token": True}, ["<|begin|>", "hello"]),
        ({"tokenizer.ggml.pre": "llama-v3", "tokenizer.ggml.add_bos_token": False}, ["hello"]),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": None}, ["hello"]),
        ({"tokenizer.ggml.pre": "gpt-2"}, ["he", "l", "l", "o"]),
        (
            {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True},
            ["<|begin|>", "he", "l", "l", "o"],
        ),
        (
            {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_eos_token": True},
            ["<|begin|>", "hello", "<|im_end|>"],
        ),
    ],
)
def test_a_byte_level_text_begins_ends_and_merges_as_llama_cpp_has_it(
    tmp_path: Path, metadata: dict[str, object], pieces: list[str]
) -> None:
    folder = pull(str(byte_level_file(tmp_path, metadata)), cache_dir=tmp_path)
    tokenizer = Tokenizer.load(folder)
    assert [tokenizer.piece(token_id) for token_id in tokenizer.encode("hello")] == pieces
    assert PreparedModel.load(folder).manifest.adds_bos == (pieces[0] == "<|begin|>")


def test_a_bos_that_the_file_does_not_have_is_refused(tmp_path: Path) -> None:
    metadata: dict[str, object] = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}
    with pytest.raises(ModelSourceError, match="BOS"):
        pull(str(byte_level_file(tmp_path, metadata)), cache_dir=tmp_path)


def test_no_token_is_added_to_those_of_the_file(tmp_path: Path) -> None:
    folder = pull(str(byte_level_file(tmp_path, {})), cache_dir=tmp_path)
    assert Tokenizer.load(folder).vocab_size == PreparedModel.load(folder).description.vocab_size


@pytest.mark.parametrize(
    ("adds", "pieces"), [(False, ["<s>", "a", "▁", "b"]), (True, ["<s>", "▁a", "▁", "b"])]
)
def test_a_sentencepiece_text_has_a_space_before_it_only_as_the_file_declares(
    tmp_path: Path, adds: bool, pieces: list[str]
) -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": adds}
    embedding = {"token_embd.weight": (metadata["llama.vocab_size"], 128)}
    file = write_gguf(tmp_path / "tiny.gguf", metadata=metadata, tensors=embedding)
    tokenizer = Tokenizer.load(pull(str(file), cache_dir=tmp_path))
    assert [tokenizer.piece(token_id) for token_id in tokenizer.encode("a b")] == pieces
    for text in ("a b", "é ☕ 😀", *(() if adds else (" a",))):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def kind_of(piece: str) -> int:
    """A GGUF token type: control, byte or normal."""
    if piece in ("<unk>", "<s>", "</s>"):
        return 3
    return 6 if piece.startswith("<0x") and piece != "<0xZZ>" else 1


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "IQ4_NL", "Q3_K", "F64"])
def test_another_tensor_type_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    read = gguf.GGUFReader(file)
    marked = [tensor._replace(tensor_type=GGMLQuantizationType[kind]) for tensor in read.tensors]
    monkeypatch.setattr(read, "tensors", marked)
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: read)
    with pytest.raises(UnsupportedModel, match=f"type {kind} of token_embd"):
        pull(str(file), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": "gemma"}, "gemma"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.scaling.type": "yarn"}, r"rope\.scaling\.type .*yarn"),
        ({"llama.rope.scaling.factor": 4.0}, r"rope\.scaling\.factor"),
        ({"llama.attention.sliding_window": 4096}, "sliding_window"),
        ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"llama.rope.dimension_count": 16}, "dimension_count"),
        ({"llama.attention.value_length": 64}, "value_length"),
        ({"llama.attention.head_count": [4, 4]}, "num_attention_heads"),
        ({"llama.block_count": None}, "num_hidden_layers"),
        ({"split.count": 3}, "split.count"),
        ({"tokenizer.ggml.pre": "deepseek-coder"}, "deepseek-coder"),
        ({"tokenizer.ggml.eos_token_id": None, "tokenizer.chat_template": None}, "end-of-sequence"),
        ({"tokenizer.chat_template": "{% for %}"}, "does not compile"),
    ],
)
def test_a_feature_is_refused_by_name(tmp_path: Path, metadata: dict[str, object], named: str) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", metadata=metadata)
    with pytest.raises(UnsupportedModel, match=named):
        pull(str(file), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("rope_freqs.weight", (16,)), ("blk.0.attn_q.bias", (128,)), ("blk.2.ffn_up.weight", (160, 128))],
)
def test_a_tensor_that_no_plain_llama_has_is_refused_by_name(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tensors={name: shape})
    with pytest.raises(UnsupportedModel, match=r"(rope_freqs|attn_q\.bias|layers\.2\.mlp\.up_proj)"):
        pull(str(file), cache_dir=tmp_path)


def test_a_misshapen_tensor_is_refused_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tensors={"blk.0.attn_k.weight": (32, 128)})
    with pytest.raises(ModelSourceError, match=r"layers\.0\.self_attn\.k_proj"):
        pull(str(file), cache_dir=tmp_path)


def test_a_missing_layer_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", metadata={"llama.block_count": 3})
    with pytest.raises(ModelSourceError, match=r"9 tensors are missing.*layers\.2"):
        pull(str(file), cache_dir=tmp_path)


@pytest.mark.parametrize("keep_bytes", [0, 3, 20, 500, 20_000, 400_000])
def test_a_truncated_file_is_refused(tmp_path: Path, keep_bytes: int) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:keep_bytes])
    with pytest.raises(ModelSourceError, match="GGUF"):
        pull(str(file), cache_dir=tmp_path)
