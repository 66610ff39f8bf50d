"""Refuses, by name, every model feature that Twinpool's Llama does not compute."""

from __future__ import annotations

from collections.abc import Mapping

from twinpool.errors import UnsupportedModel

_ROPE_FIELDS = ("rope_parameters", "rope_scaling")


def refuse_unsupported(config: Mapping[str, object]) -> None:
    """Look for features in a Hugging Face config.json that would change what the model computes.

    Raises UnsupportedModel naming the first one found.
    """
    _refuse_other_family(config)
    for feature in ("attention_bias", "mlp_bias", "auto_map", "sliding_window"):
        if config.get(feature):
            raise UnsupportedModel(f"{feature} is not supported (config.json sets it to {config[feature]!r})")
    if config.get("quantization_config") is not None:
        raise UnsupportedModel(
            "quantization_config is not supported: weights must be float32, float16 or bfloat16"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"hidden_act {activation!r} is not supported, only 'silu'")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not supported")
    for field in _ROPE_FIELDS:
        _refuse_scaled_rope(field, config.get(field))


def rope_theta_of(config: Mapping[str, object]) -> object:
    """The base of the rotary embedding, from either place that transformers versions write it to."""
    for field in _ROPE_FIELDS:
        rope = config.get(field)
        if isinstance(rope, Mapping) and "rope_theta" in rope:
            return rope["rope_theta"]
    return config.get("rope_theta", 10000.0)


def _refuse_other_family(config: Mapping[str, object]) -> None:
    architectures = config.get("architectures")
    if architectures is not None and architectures != ["LlamaForCausalLM"]:
        raise UnsupportedModel(f"architectures {architectures!r} are not supported, only LlamaForCausalLM")
    family = config.get("model_type")
    if family != "llama":
        raise UnsupportedModel(f"model_type {family!r} is not supported, only 'llama'")


def _refuse_scaled_rope(field: str, rope: object) -> None:
    if rope is None:
        return
    if not isinstance(rope, Mapping):
        raise UnsupportedModel(f"{field} {rope!r} is not supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UnsupportedModel(f"{field} of type {kind!r} is not supported, only 'default'")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not supported")
