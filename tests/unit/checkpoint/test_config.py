"""Config files of models are foreign input: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.models.llama_config import LLAMA
from twinpool.checkpoint.prepared import read_description
from twinpool.engine.models.registry import describe_model
from twinpool.errors import ModelSourceError, UnsupportedModel


def test_a_llama_is_read_with_the_defaults_of_transformers() -> None:
    attention = describe_model(LLAMA).layers[0].attention
    assert (attention.head_dim, attention.rope.theta) == (16, 10000.0)
    without = {
        key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "architectures")
    }
    assert describe_model(without).layers[0].attention.num_kv_heads == 4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 500000, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_the_rotary_base_is_found_wherever_transformers_wrote_it(rope: dict[str, object]) -> None:
    assert describe_model(LLAMA | rope).layers[0].attention.rope.theta == 5e5


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = LLAMA | {"rope_theta": 1e5, "rms_norm_eps": 9.999999747378752e-06}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_description(tmp_path) == describe_model(config)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"architectures": None, "model_type": "gemma"}, "gemma"),
        ({"model_type": None}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling of type 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear'"),
        ({"rope_scaling": "yarn"}, "rope_scaling 'yarn'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters of type 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"auto_map": {"AutoModel": "model.py"}}, "auto_map"),
        ({"sliding_window": 4096}, "sliding_window"),
    ],
)
def test_a_feature_not_computed_here_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        describe_model(LLAMA | change)


QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 32768}


def test_a_qwen2_has_biases_and_a_window_that_it_does_not_use() -> None:
    (layer, _) = describe_model(QWEN2 | {"use_sliding_window": False, "rope_theta": 1e6}).layers
    assert layer.attention.qkv_bias
    assert layer.attention.rope.theta == 1e6
    with pytest.raises(UnsupportedModel, match="use_sliding_window"):
        describe_model(QWEN2 | {"use_sliding_window": True})


def test_one_family_s_architecture_with_another_s_type_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="model_type 'llama'"):
        describe_model(QWEN2 | {"model_type": "llama"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"intermediate_size": "128"}, "intermediate_size"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5}, "multiple of 5"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        describe_model(LLAMA | change)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, b"\xff\xfe"])
def test_a_file_that_holds_no_object_is_refused(tmp_path: Path, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ModelSourceError, match=r"config\.json"):
        read_description(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"config\.json"):
        read_description(tmp_path)
