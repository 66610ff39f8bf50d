"""What a GGUF file says of its tokenizer and transformers leaves out, by llama.cpp's rules.

Source: llama.cpp, src/llama-vocab.cpp, `llama_vocab::impl::load`: defaults by kind of vocabulary and
pre-tokenizer, then what the file itself sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import tokenizers
from tokenizers import decoders, pre_tokenizers, processors

from twinpool.errors import ModelSourceError, UnsupportedModel

_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
# Llama 3's: words that are in the vocabulary are taken whole, and a text begins with BOS.
_LLAMA_3 = frozenset({"llama-bpe", "llama-v3", "llama3"})
# Pre-tokenizers of byte-level vocabularies that transformers builds rightly, or that are mended here.
_PRE_TOKENIZERS = _LLAMA_3 | {"gpt-2", "smollm"}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """kind, pre: tokenizer.ggml.model and .pre. tokens: by id. bos, eos: ids, where the file has them."""

    kind: str | None
    pre: str | None
    tokens: Sequence[str]
    bos: int | None
    eos: int | None
    adds_bos: bool
    adds_eos: bool
    adds_space_prefix: bool

    @classmethod
    def read(cls, value: Callable[..., Any]) -> Self:
        """value: a metadata value by key, or the default. Raises UnsupportedModel for a pre-tokenizer whose
        tokens would come out wrong.
        """
        kind, pre = value("tokenizer.ggml.model"), value("tokenizer.ggml.pre")
        if kind == _BYTE_LEVEL and pre is not None and pre not in _PRE_TOKENIZERS:
            raise UnsupportedModel(f"GGUF pre-tokenizer {pre!r} is not supported")
        is_sentencepiece = kind == _SENTENCEPIECE
        bos = value("tokenizer.ggml.bos_token_id", 1 if is_sentencepiece else None)
        begins = bos is not None and (is_sentencepiece or (kind == _BYTE_LEVEL and pre in _LLAMA_3))
        return cls(
            kind,
            pre,
            tokens=value("tokenizer.ggml.tokens", ()),
            bos=bos,
            eos=value("tokenizer.ggml.eos_token_id", 2 if is_sentencepiece else None),
            adds_bos=value("tokenizer.ggml.add_bos_token", begins) is True,
            adds_eos=value("tokenizer.ggml.add_eos_token", False) is True,
            adds_space_prefix=value("tokenizer.ggml.add_space_prefix", is_sentencepiece) is True,
        )

    def mended(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """What transformers made of the file, with the rest of what the file says."""
        backend = self._without_foreign_tokens(backend)
        if self.kind == _BYTE_LEVEL and self.pre in _LLAMA_3:
            backend.model.ignore_merges = True
        if self.kind == _BYTE_LEVEL and self.pre == "smollm":
            # transformers does not know this one and falls back on GPT-2's split. The digits come out alike,
            # not the white space before them: SmolLM cuts digits off first, so that "\n\n1" keeps its "\n\n".
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        if self.kind == _SENTENCEPIECE and not self.adds_space_prefix:
            backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
            backend.decoder = decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
            )
        backend.post_processor = self._frame()
        return backend

    def _without_foreign_tokens(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """transformers adds tokens of its own, with ids that the model has no embedding for."""
        state = json.loads(backend.to_str())
        state["added_tokens"] = [each for each in state["added_tokens"] if each["id"] < len(self.tokens)]
        return tokenizers.Tokenizer.from_str(json.dumps(state))

    def _frame(self) -> processors.TemplateProcessing:
        """What a text begins and ends with."""
        begin = [self._token("BOS", self.bos)] if self.adds_bos else []
        end = [self._token("EOS", self.eos)] if self.adds_eos else []
        single = [*(token for token, _ in begin), "$A", *(token for token, _ in end)]
        pair = [*single, *(f"{token}:1" for token, _ in begin), "$B:1", *(f"{token}:1" for token, _ in end)]
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=begin + end)

    def _token(self, name: str, token_id: int | None) -> tuple[str, int]:
        if token_id is None or not 0 <= token_id < len(self.tokens):
            raise ModelSourceError(f"texts are to have {name}, but the GGUF file names no such token")
        return self.tokens[token_id], token_id
