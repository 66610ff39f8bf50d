"""What a model is: a Llama's shape and constants, and the prepared folder it is served from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from twinpool.errors import UnsupportedModel
from twinpool.model.fields import bool_field, int_field, read_json, to_float
from twinpool.model.manifest import WEIGHTS_FILE, Manifest
from twinpool.prepare.features import refuse_unsupported, rope_theta_of

CONFIG_FILE = "config.json"

# No Llama comes near; a damaged or hostile file must not make us reserve memory by its word.
_MOST = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and constants of a Llama; every number is checked, since config files are foreign input.

    Raises UnsupportedModel where a value cannot be a Llama's.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_tokens: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is int and not 1 <= value <= _MOST:
                raise UnsupportedModel(f"{name} is {value}, outside 1 to {_MOST}")
            if type(value) is float and not (math.isfinite(value) and value > 0):
                raise UnsupportedModel(f"{name} is {value}, not a positive number")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"{self.num_heads} attention heads do not share {self.num_kv_heads} KV heads evenly"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim is {self.head_dim}; rotary embedding needs an even one")

    @classmethod
    def from_json(cls, config: Mapping[str, object]) -> Self:
        """Read the fields of a Hugging Face LlamaConfig. Raises UnsupportedModel naming field or feature."""
        refuse_unsupported(config)
        hidden_size = int_field(config, "hidden_size")
        num_heads = int_field(config, "num_attention_heads")
        head_dim = config.get("head_dim")
        if head_dim is None and (num_heads < 1 or hidden_size % num_heads):
            raise UnsupportedModel(
                f"hidden_size {hidden_size} is not a multiple of {num_heads} attention heads"
            )
        return cls(
            vocab_size=int_field(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=int_field(config, "intermediate_size"),
            num_layers=int_field(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=int_field(config, "num_key_value_heads", default=num_heads),
            head_dim=int_field(config, "head_dim", default=hidden_size // max(num_heads, 1)),
            max_context_tokens=int_field(config, "max_position_embeddings"),
            rope_theta=to_float("rope_theta", rope_theta_of(config)),
            rms_norm_eps=to_float("rms_norm_eps", config.get("rms_norm_eps")),
            tie_word_embeddings=bool_field(config, "tie_word_embeddings", default=False),
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read folder/config.json. Raises ModelSourceError if unreadable, UnsupportedModel as above."""
        return cls.from_json(read_json(folder / CONFIG_FILE))

    def to_json(self) -> dict[str, object]:
        """The same configuration in the field names of Hugging Face's LlamaConfig."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_context_tokens,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "hidden_act": "silu",
        }


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model ready to be served."""

    folder: Path
    config: ModelConfig
    manifest: Manifest

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a prepared folder's descriptions, not its weights. Raises ModelSourceError if damaged."""
        return cls(folder, ModelConfig.load(folder), Manifest.load(folder))

    @property
    def name(self) -> str:
        """The name under which clients ask for the model."""
        return self.manifest.name

    @property
    def digest(self) -> str:
        """SHA-256 of the weights, in hex."""
        return self.manifest.weights_sha256

    @property
    def bos_token_id(self) -> int | None:
        """The token that starts a text, if the model has one."""
        return self.manifest.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a choice, ascending."""
        return self.manifest.eos_token_ids

    @property
    def weights_file(self) -> Path:
        """The one safetensors file, in Hugging Face's tensor names."""
        return self.folder / WEIGHTS_FILE
