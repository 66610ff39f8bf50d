"""Small tokenizers of every kind that models have, built in memory."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

END = "<|im_end|>"
BYTE_MERGES = (("Ġ", "t"), ("h", "e"), ("Ã", "©"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("æ", "Ĺ"))
_WORDS = ("▁", "▁▁", "▁a", "a", "b", "t", "he", "▁the", "é", "日", "\n", "<0xZZ>", "☕")


def byte_level() -> tokenizers.Tokenizer:
    """Like GPT-2's: every token is bytes; merges cut characters in the middle."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *("".join(merge) for merge in BYTE_MERGES)]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(BYTE_MERGES)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True)])
    # é alone is in the byte alphabet and is read as a byte; the others are written as they are.
    backend.add_tokens([AddedToken("<think>"), AddedToken("é"), AddedToken("a b"), AddedToken("☕é")])
    return backend


def sentencepiece(*stages: decoders.Decoder) -> tokenizers.Tokenizer:
    """Like Llama 2's: words with ▁ for the space, and byte tokens for what has no word."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.decoder = decoders.Sequence(list(stages))
    backend.add_special_tokens([AddedToken(piece, special=True) for piece in ("<unk>", "<s>", "</s>")])
    return backend


def llama_2() -> tokenizers.Tokenizer:
    return sentencepiece(
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    )


def metaspace() -> tokenizers.Tokenizer:
    return sentencepiece(decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always"))


def unstripped() -> tokenizers.Tokenizer:
    return sentencepiece(decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())


def pieces_of(backend: tokenizers.Tokenizer, *, with_added_tokens: bool = True) -> list[str]:
    """The vocabulary in the order of its ids."""
    vocabulary = backend.get_vocab(with_added_tokens)
    return sorted(vocabulary, key=vocabulary.__getitem__)
