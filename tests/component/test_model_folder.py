"""Folders in Hugging Face's layout, local or from the hub."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
import tokenizers
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from tests.support.models.tiny_models import write_folder
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.errors import InvalidRequest, ModelSourceError, UnsupportedModel
from twinpool.prepare.fetch import sha256_of
from twinpool.prepare.pull import prepared_path, pull

_STARTS_WITH_A = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"a": {"id": "a", "ids": [64], "tokens": ["a"]}},
}


def source_weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shard", ["1GB", "200KB"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_taken_over_as_they_are_stored(
    tmp_path: Path, dtype: torch.dtype, shard: str, tied: bool
) -> None:
    source = write_folder(tmp_path / "tiny", dtype=dtype, tied=tied, shard=shard)
    assert (len(list(source.glob("*.safetensors"))) > 1) == (shard == "200KB")
    model = PreparedModel.load(pull(str(source), cache_dir=tmp_path))
    ours, theirs = load_file(model.weights_file), source_weights(source)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].dtype == dtype and torch.equal(ours[name], theirs[name]) for name in theirs)
    assert model.digest == sha256_of(model.weights_file)
    assert model.description.tied_output is tied
    assert model.name == "tiny"


def test_all_end_tokens_count(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "tiny")
    edit_json(source / "config.json", eos_token_id=5)
    edit_json(source / "generation_config.json", eos_token_id=[7, 5])
    edit_json(source / "tokenizer_config.json", eos_token="a", chat_template="{{ '<|im_end|>' }}")
    folder = pull(str(source), cache_dir=tmp_path)
    tokenizer = Tokenizer.load(folder)
    ends = {5, 7, tokenizer.id_of("a"), tokenizer.id_of("<|im_end|>")}
    assert set(PreparedModel.load(folder).eos_token_ids) == ends


@pytest.mark.parametrize("adds", [True, False])
def test_bos_comes_as_in_transformers_and_never_twice(tmp_path: Path, adds: bool) -> None:
    source = write_folder(tmp_path / "tiny")
    template = "{{ bos_token }}{{ messages[0].content }}"
    edit_json(source / "tokenizer_config.json", bos_token="a", chat_template=template)
    if adds:
        edit_json(source / "tokenizer.json", post_processor=_STARTS_WITH_A)
    folder = pull(str(source), cache_dir=tmp_path)
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(source)
    bos = ours.id_of("a")
    assert ours.encode("the") == theirs("the").input_ids
    assert (ours.encode("the")[0] == bos) is adds
    assert ours.apply_chat_template([{"role": "user", "content": "the"}]).count(bos or -1) == 1
    assert ours.apply_chat_template([{"role": "user", "content": "the"}])[0] == bos
    assert PreparedModel.load(folder).manifest.adds_bos is adds


def test_what_follows_from_the_config_is_left_out(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "tiny")
    weights = load_file(source / "model.safetensors")
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16),
        "lm_head.weight": weights["model.embed_tokens.weight"].clone(),  # tied
    }
    save_file(weights | extra, source / "model.safetensors", {"format": "pt"})
    with safe_open(pull(str(source), cache_dir=tmp_path) / "model.safetensors", "pt") as file:
        assert set(file.keys()) == weights.keys()


@pytest.mark.parametrize(
    ("name", "tensor", "named"),
    [
        ("model.layers.0.self_attn.q_proj.bias", torch.zeros(128), r"q_proj\.bias is not part"),
        ("model.norm.weight", torch.zeros(128, dtype=torch.int8), r"tensor type I8 of model\.norm"),
        ("model.norm.weight", torch.zeros(128).to(torch.float8_e4m3fn), "tensor type F8_E4M3"),
    ],
)
def test_a_tensor_not_computed_with_is_refused_by_name(
    tmp_path: Path, name: str, tensor: torch.Tensor, named: str
) -> None:
    source = write_folder(tmp_path / "tiny")
    weights = load_file(source / "model.safetensors")
    save_file(weights | {name: tensor}, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=named):
        pull(str(source), cache_dir=tmp_path)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "tiny")
    edit_json(source / "config.json", architectures=["GemmaForCausalLM"], model_type="gemma")
    with pytest.raises(UnsupportedModel, match="GemmaForCausalLM"):
        pull(str(source), cache_dir=tmp_path)


def test_pickle_weights_are_refused(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "tiny")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(ModelSourceError, match="pickle"):
        pull(str(source), cache_dir=tmp_path)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "missing.safetensors"])
def test_an_index_names_only_files_of_its_folder(tmp_path: Path, shard: str) -> None:
    source = write_folder(tmp_path / "tiny")
    (source / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": shard}})
    )
    with pytest.raises(ModelSourceError, match="no file of the folder"):
        pull(str(source), cache_dir=tmp_path)


@pytest.mark.parametrize(("name", "content"), [("model.safetensors", b"\0" * 40), ("tokenizer.json", b"{")])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    source = write_folder(tmp_path / "tiny")
    (source / name).write_bytes(content)
    with pytest.raises(ModelSourceError):
        pull(str(source), cache_dir=tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "tiny")
    (source / "tokenizer.json").unlink()
    with pytest.raises(ModelSourceError, match=r"tokenizer\.json"):
        pull(str(source), cache_dir=tmp_path)


def test_a_hub_name_is_downloaded_without_code_and_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, asked = write_folder(tmp_path / "snapshot"), []

    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        asked.append((repository, allow_patterns))
        return str(source)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    folder = pull("owner/name", cache_dir=tmp_path)
    ((repository, patterns),) = asked
    assert repository == "owner/name"
    assert not [pattern for pattern in patterns if pattern.endswith((".bin", ".py", ".pt", "*"))]
    assert PreparedModel.load(folder).name == "owner/name"
    assert prepared_path("owner/name", tmp_path) == folder


def test_a_hub_that_does_not_answer_ends_the_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelSourceError, match=r"owner/name.*no route"):
        pull("owner/name", cache_dir=tmp_path)


def test_a_token_that_the_model_has_no_embedding_for_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    file = folder / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(file))
    beyond = backend.get_vocab_size()
    backend.add_special_tokens(["<|extra|>"])
    backend.save(str(file))
    tokenizer = Tokenizer.load(pull(str(folder), cache_dir=tmp_path))
    assert tokenizer.encode("the")
    words = rf"has token {beyond} \('<\|extra\|>'\), unknown to the model"
    with pytest.raises(InvalidRequest, match=f"text {words}") as raised:
        tokenizer.encode("the <|extra|> the")
    assert raised.value.field == "text"
