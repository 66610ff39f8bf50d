"""The prepared folder that a model is served from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from twinpool.checkpoint.json_files import read_json
from twinpool.checkpoint.manifest import WEIGHTS_FILE, Manifest
from twinpool.engine.models.description import ModelDescription
from twinpool.engine.models.registry import describe_model

CONFIG_FILE = "config.json"


def read_description(folder: Path) -> ModelDescription:
    """What the model of folder/config.json computes.

    Raises ModelSourceError if the file is unreadable, UnsupportedModel naming what is not computed here.
    """
    return describe_model(read_json(folder / CONFIG_FILE))


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model ready to be served."""

    folder: Path
    description: ModelDescription
    manifest: Manifest

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a prepared folder's descriptions, not its weights. Raises ModelSourceError if damaged."""
        return cls(folder, read_description(folder), Manifest.load(folder))

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
