"""What the config.json of most decoders have in common, and the features that none may ask for here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twinpool.engine.models.config_fields import Config, bool_field, positive_number, size_field
from twinpool.engine.models.description import Attention, Layer, Mlp, ModelDescription, Rope, TensorNames
from twinpool.errors import UnsupportedModel

_ROPE_FIELDS = ("rope_parameters", "rope_scaling")


def refuse(config: Config, features: Iterable[str]) -> None:
    """Raises UnsupportedModel naming the first of these features that the config sets."""
    for feature in features:
        if config.get(feature):
            raise UnsupportedModel(f"{feature} is not supported (config.json sets it to {config[feature]!r})")


def describe_decoder(
    config: Config, tensor_names: TensorNames, *, qkv_bias: bool = False
) -> ModelDescription:
    """Read the fields that Llama and its relatives share, with the defaults of transformers.

    Raises UnsupportedModel naming a field that cannot be, or a feature that is not computed here.
    """
    _refuse_for_all(config)
    norm_eps = positive_number("rms_norm_eps", config.get("rms_norm_eps"))
    layer = Layer(
        attention=_attention(config, qkv_bias),
        mlp=Mlp(inner_size=size_field(config, "intermediate_size")),
        norm_eps=norm_eps,
    )
    return ModelDescription(
        vocab_size=size_field(config, "vocab_size"),
        hidden_size=size_field(config, "hidden_size"),
        max_context_tokens=size_field(config, "max_position_embeddings"),
        layers=(layer,) * size_field(config, "num_hidden_layers"),
        norm_eps=norm_eps,
        tied_output=bool_field(config, "tie_word_embeddings", default=False),
        tensor_names=tensor_names,
    )


def _attention(config: Config, qkv_bias: bool) -> Attention:
    hidden_size, num_heads = size_field(config, "hidden_size"), size_field(config, "num_attention_heads")
    num_kv_heads = size_field(config, "num_key_value_heads", default=num_heads)
    if config.get("head_dim") is None and hidden_size % num_heads:
        raise UnsupportedModel(f"hidden_size {hidden_size} is not a multiple of {num_heads} attention heads")
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"{num_heads} attention heads do not share {num_kv_heads} KV heads evenly")
    head_dim = size_field(config, "head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise UnsupportedModel(f"head_dim is {head_dim}; rotary embedding needs an even one")
    rope = Rope(theta=positive_number("rope_theta", _rope_theta(config)))
    return Attention(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, rope=rope, qkv_bias=qkv_bias
    )


def _refuse_for_all(config: Config) -> None:
    refuse(config, ["auto_map"])
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


def _rope_theta(config: Config) -> object:
    """The base of the rotary embedding, from either place that transformers versions write it to."""
    for field in _ROPE_FIELDS:
        rope = config.get(field)
        if isinstance(rope, Mapping) and "rope_theta" in rope:
            return rope["rope_theta"]
    return config.get("rope_theta", 10000.0)


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
