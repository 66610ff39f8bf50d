"""Turns a growing list of tokens into text chunks that add up to exactly the text of the whole list.

Decoding does not distribute over tokens: a character's bytes may be spread over several, and sentencepiece
decoders drop the first space. Two kinds of decoder exist (see `decoder_kind`), each with its own proof:

BYTE_LEVEL  The text is the UTF-8 of all tokens' bytes, invalid parts replaced. An incremental UTF-8 decoder
            is that same function of the bytes, however they are cut; it holds back at most three.

SEGMENTS    A run of byte tokens becomes text together (all of it, or one U+FFFD a byte), every other token by
            itself. So tokens are decoded at the ends of runs. Only the text's start is special, its first
            space is dropped. So the head, up to the first visible text, is decoded as it is, and whatever
            follows is decoded behind an anchor, a token with a text of its own that is then cut off.
"""

from __future__ import annotations

import codecs
import string
from collections.abc import Sequence
from typing import Protocol

from twinpool.checkpoint.decoder_kind import DecoderKind
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.errors import UnsupportedModel


class IncrementalDetokenizer:
    """The text of one choice's output tokens, as it grows.

    All chunks together, finish's included, equal tokenizer.decode(all ids, skip_special_tokens); no chunk
    holds a U+FFFD that the whole text has not. Memory and time per token are bounded, but for a run of byte
    tokens of a sentencepiece model, which is held until it ends.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        by_bytes = tokenizer.decoder_kind is DecoderKind.BYTE_LEVEL
        self._text: _Text = _ByteLevelText(tokenizer) if by_bytes else _SegmentText(tokenizer)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens; returns the text that no later token can change, maybe none."""
        return self._text.push([token_id for token_id in token_ids if self._has_text(token_id)])

    def finish(self) -> str:
        """The rest of the text, once no token follows."""
        return self._text.finish()

    def _has_text(self, token_id: int) -> bool:
        piece = self._tokenizer.piece(token_id)
        return piece is not None and not (self._skip_special_tokens and self._tokenizer.is_special(piece))


class _Text(Protocol):
    def push(self, token_ids: list[int]) -> str: ...

    def finish(self) -> str: ...


class _ByteLevelText:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: list[int]) -> str:
        pieces = (self._tokenizer.piece(token_id) for token_id in token_ids)
        return self._decoder.decode(b"".join(_piece_bytes(piece) for piece in pieces if piece is not None))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _SegmentText:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor, self._anchor_chars = _find_anchor(tokenizer)
        self._run: list[int] = []
        self._head: list[int] | None = []

    def push(self, token_ids: list[int]) -> str:
        end = len(token_ids)
        while end and self._may_be_byte(token_ids[end - 1]):
            end -= 1
        if not end:
            self._run += token_ids
            return ""
        segments, self._run = self._run + token_ids[:end], token_ids[end:]
        return self._decode(segments)

    def finish(self) -> str:
        run, self._run = self._run, []
        return self._decode(run) if run else ""

    def _decode(self, token_ids: list[int]) -> str:
        if self._head is None:
            text = self._tokenizer.decode([self._anchor, *token_ids], skip_special_tokens=False)
            return text[self._anchor_chars :]
        self._head += token_ids
        text = self._tokenizer.decode(self._head, skip_special_tokens=False)
        if text:
            self._head = None
        return text

    def _may_be_byte(self, token_id: int) -> bool:
        # Too many is safe, too few is not: whatever looks like a byte is held.
        piece = self._tokenizer.piece(token_id) or ""
        return piece.startswith("<0x") and piece.endswith(">")


def _find_anchor(tokenizer: Tokenizer) -> tuple[int, int]:
    for letter in string.ascii_letters:
        token_id = tokenizer.id_of(letter)
        if token_id is not None:
            return token_id, len(letter)
    raise UnsupportedModel("the tokenizer has no token for a single letter")


def _piece_bytes(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # an added token outside the byte alphabet is written as itself
        return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level vocabularies (GPT-2, bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
