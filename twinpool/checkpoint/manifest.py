"""The files of a prepared folder, and the one that says what the others are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from twinpool.checkpoint.json_files import read_json
from twinpool.errors import ModelSourceError

PREPARED_FILE = "prepared.json"
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"

FORMAT_VERSION = 1
"""Raised when what pull writes changes, so that older folders are prepared anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What prepared.json says.

    source: where the model came from, for people.
    weights_sha256: digest of the weights file; part of the hand-off's layout fingerprint.
    eos_token_ids: ascending; any of them ends a choice.
    adds_bos: the tokenizer itself puts the BOS token first.
    special_tokens: the strings that chat templates may name (bos_token, eos_token, ...).
    """

    name: str
    source: str
    weights_sha256: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool
    special_tokens: Mapping[str, str]
    format_version: int = FORMAT_VERSION

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read folder/prepared.json. Raises ModelSourceError if this version did not prepare it."""
        fields = read_json(folder / PREPARED_FILE)
        if fields.get("format_version") != FORMAT_VERSION:
            raise ModelSourceError(
                f"{folder} was prepared by another version of twinpool: pull the model again"
            )
        try:
            eos_token_ids = tuple(fields.pop("eos_token_ids"))
            return cls(eos_token_ids=eos_token_ids, **fields)
        except (KeyError, TypeError) as error:
            raise ModelSourceError(f"{folder / PREPARED_FILE} is damaged: {error}") from error

    def write(self, folder: Path) -> None:
        """Write folder/prepared.json; pull writes it last."""
        (folder / PREPARED_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")
