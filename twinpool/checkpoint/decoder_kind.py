"""Sorts tokenizers by how their decoder composes, which decides whether text can be streamed exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tokenizers.decoders import Decoder

from twinpool.errors import UnsupportedModel

# Each stage acts on one token, a run of byte tokens, or the first character of the text: see `detokenizer`.
# Only this order keeps it so (after Fuse the whole text is one token).
_SEGMENT_STAGES = ("Replace", "ByteFallback", "Metaspace", "Fuse", "Strip")


class DecoderKind(StrEnum):
    """How the text of a token sequence comes from its tokens.

    BYTE_LEVEL: every token is bytes, and the text is their UTF-8.
    SEGMENTS: sentencepiece; a token is text, or one byte written <0xNN>.
    """

    BYTE_LEVEL = "byte_level"
    SEGMENTS = "segments"


def decoder_kind(decoder: Decoder | None) -> DecoderKind:
    """Raises UnsupportedModel for a decoder whose text cannot be sent before it is whole."""
    if decoder is None:
        raise UnsupportedModel("a tokenizer without a decoder is not supported")
    description: dict[str, Any] = json.loads(decoder.__getstate__())
    stages = description["decoders"] if description["type"] == "Sequence" else [description]
    names = [stage["type"] for stage in stages]
    if names == ["ByteLevel"]:
        return DecoderKind.BYTE_LEVEL
    remaining = iter(_SEGMENT_STAGES)
    if names and all(name in remaining for name in names) and all(map(_is_plain, stages)):
        return DecoderKind.SEGMENTS
    raise UnsupportedModel(f"tokenizer decoder {' + '.join(names)} is not supported")


def _is_plain(stage: Mapping[str, Any]) -> bool:
    match stage["type"]:
        case "Replace":
            return bool(stage["pattern"] == {"String": "\u2581"} and stage["content"] == " ")
        case "Strip":
            return bool(stage["content"] == " " and stage["start"] <= 1 and stage["stop"] == 0)
        case _:
            return True
