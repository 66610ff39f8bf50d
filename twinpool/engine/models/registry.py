"""The families there are; a new one is added here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twinpool.engine.models.description import ModelDescription
from twinpool.engine.models.family import Family
from twinpool.engine.models.llama import LLAMA
from twinpool.engine.models.qwen2 import QWEN2
from twinpool.errors import UnsupportedModel

FAMILIES = (LLAMA, QWEN2)


def describe_model(config: Mapping[str, object]) -> ModelDescription:
    """What the model of a Hugging Face config.json computes.

    Raises UnsupportedModel naming family, field or feature.
    """
    architectures = config.get("architectures")
    known = {family.architecture: family for family in FAMILIES}
    if architectures is not None and architectures not in [[name] for name in known]:
        raise UnsupportedModel(f"architectures {architectures!r} are not supported, only {_either(known)}")
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type == family.model_type and architectures in (None, [family.architecture]):
            return family.describe(config)
    only = _either(family.model_type for family in FAMILIES)
    raise UnsupportedModel(f"model_type {model_type!r} is not supported, only {only}")


def gguf_family(architecture: object) -> Family:
    """The family of a GGUF file. Raises UnsupportedModel naming its architecture."""
    for family in FAMILIES:
        if architecture == family.gguf_architecture:
            return family
    only = _either(family.gguf_architecture for family in FAMILIES)
    raise UnsupportedModel(f"GGUF architecture {architecture!r} is not supported, only {only}")


def _either(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in names)
