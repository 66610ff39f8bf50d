"""Which tensors a described model has: shapes follow from the description, names are the family's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from twinpool.engine.models.description import Layer, ModelDescription, Role, TensorNames

Shape = tuple[int, ...]
_LAYER_NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a model. layer: None where there is one for the whole model."""

    role: Role
    layer: int | None
    name: str
    shape: Shape


def tensors_of(model: ModelDescription) -> Iterator[TensorSpec]:
    """All tensors, in the order of the prepared file. Matrices are `[out_features, in_features]`."""
    hidden, vocabulary = (model.hidden_size,), (model.vocab_size, model.hidden_size)
    yield _spec(model, Role.EMBEDDING, None, vocabulary)
    for number, layer in enumerate(model.layers):
        for role, shape in _layer_shapes(layer, model.hidden_size).items():
            yield _spec(model, role, number, shape)
    yield _spec(model, Role.FINAL_NORM, None, hidden)
    if not model.tied_output:
        yield _spec(model, Role.OUTPUT, None, vocabulary)


def name_of(names: TensorNames, role: Role, layer: int | None) -> str:
    """The name of the tensor that has a role."""
    return names[role].format(layer=layer)


def role_of(names: TensorNames, name: str) -> tuple[Role, int | None] | None:
    """The role and layer of the tensor that has a name; None for a name that no tensor has."""
    match = _LAYER_NUMBER.search(name)
    template = name if match is None else _LAYER_NUMBER.sub(".{layer}.", name, count=1)
    role = next((role for role in names if names[role] == template), None)
    return None if role is None else (role, int(match[1]) if match else None)


def _spec(model: ModelDescription, role: Role, layer: int | None, shape: Shape) -> TensorSpec:
    return TensorSpec(role, layer, name_of(model.tensor_names, role, layer), shape)


def _layer_shapes(layer: Layer, hidden: int) -> dict[Role, Shape]:
    attention, inner = layer.attention, layer.mlp.inner_size
    query, key = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    biases: dict[Role, Shape] = {
        Role.QUERY_BIAS: (query,),
        Role.KEY_BIAS: (key,),
        Role.VALUE_BIAS: (key,),
    }
    return {
        Role.ATTENTION_NORM: (hidden,),
        Role.QUERY: (query, hidden),
        Role.KEY: (key, hidden),
        Role.VALUE: (key, hidden),
        **(biases if attention.qkv_bias else {}),
        Role.ATTENTION_OUTPUT: (hidden, query),
        Role.MLP_NORM: (hidden,),
        Role.GATE: (inner, hidden),
        Role.UP: (inner, hidden),
        Role.DOWN: (hidden, inner),
    }
