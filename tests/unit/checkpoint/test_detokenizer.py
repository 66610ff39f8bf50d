"""Streamed text adds up to exactly the text of the whole token list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from tests.support.models import tiny_tokenizers
from twinpool.checkpoint.detokenizer import IncrementalDetokenizer
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.errors import UnsupportedModel

_TOKENIZERS = {
    build.__name__: Tokenizer(build())
    for build in (
        tiny_tokenizers.byte_level,
        tiny_tokenizers.llama_2,
        tiny_tokenizers.metaspace,
        tiny_tokenizers.unstripped,
    )
}
_ALL = pytest.mark.parametrize("tokenizer", _TOKENIZERS.values(), ids=_TOKENIZERS)
_SENTENCEPIECE = pytest.mark.parametrize(
    "tokenizer", [_TOKENIZERS[name] for name in ("llama_2", "metaspace", "unstripped")]
)
_TEXTS = ("the the", "日本 😀 ☕", "👩‍👩‍👧 e\u0301", " the", "\ufffd", "\n\n a", "🇩🇪")


def chunks_of(tokenizer: Tokenizer, pushes: Sequence[Sequence[int]], skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(push) for push in pushes), detokenizer.finish()]


def ids_of(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    ids = [tokenizer.id_of(piece) for piece in pieces]
    assert None not in ids
    return [token_id for token_id in ids if token_id is not None]


@_ALL
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_tokens_in_any_chunks_add_up_to_the_whole_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    known = st.integers(0, tokenizer.vocab_size + 2)  # some beyond the vocabulary
    rare = st.integers(tokenizer.vocab_size - 14, tokenizer.vocab_size - 1)
    pushes = data.draw(st.lists(st.lists(known | rare, max_size=6), max_size=12))
    skip = data.draw(st.booleans())
    whole = [token_id for push in pushes for token_id in push]
    assert "".join(chunks_of(tokenizer, pushes, skip)) == tokenizer.decode(whole, skip)


@_ALL
@pytest.mark.parametrize("text", _TEXTS)
def test_real_text_token_by_token_has_no_replacement_character_of_its_own(
    tokenizer: Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    chunks = chunks_of(tokenizer, [[token_id] for token_id in ids])
    assert "".join(chunks) == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(chunks) or "\ufffd" in text


def test_bytes_of_a_character_are_held_until_it_is_whole() -> None:
    tokenizer = _TOKENIZERS["byte_level"]
    emoji = ids_of(tokenizer, "ðŁĺ", "Ģ")
    assert chunks_of(tokenizer, [[emoji[0]], [emoji[1]], ids_of(tokenizer, "he")]) == ["", "😀", "he", ""]


def test_an_endless_run_of_invalid_bytes_is_not_held() -> None:
    tokenizer = _TOKENIZERS["byte_level"]
    stray = ids_of(tokenizer, "Ģ")
    assert chunks_of(tokenizer, [stray] * 50) == ["\ufffd"] * 50 + [""]


@_SENTENCEPIECE
def test_a_run_of_byte_tokens_waits_for_its_end(tokenizer: Tokenizer) -> None:
    emoji = ids_of(tokenizer, "a", *(f"<0x{byte:02X}>" for byte in "😀".encode()), "b")
    assert chunks_of(tokenizer, [[token_id] for token_id in emoji]) == ["a", "", "", "", "", "😀b", ""]


@_SENTENCEPIECE
def test_a_later_invalid_byte_spoils_its_whole_run(tokenizer: Tokenizer) -> None:
    run = ids_of(tokenizer, "a", *(f"<0x{byte:02X}>" for byte in "😀".encode()), "<0xFF>", "b")
    assert "".join(chunks_of(tokenizer, [[token_id] for token_id in run])) == "a" + "\ufffd" * 5 + "b"


def test_only_the_first_space_is_dropped() -> None:
    tokenizer = _TOKENIZERS["llama_2"]
    ids = ids_of(tokenizer, "<s>", "▁", "▁a", "▁a")
    assert chunks_of(tokenizer, [[token_id] for token_id in ids]) == ["", "", " a", " a", ""]


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = _TOKENIZERS["byte_level"]
    ids = ids_of(tokenizer, "he", tiny_tokenizers.END)
    assert chunks_of(tokenizer, [ids], skip=True) == ["he", ""]
    assert chunks_of(tokenizer, [ids], skip=False) == [f"he{tiny_tokenizers.END}", ""]


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.CTC(), "CTC"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]), r"Fuse \+ ByteFallback"),
        (decoders.Sequence([decoders.Replace("ab", "c"), decoders.Fuse()]), r"Replace \+ Fuse"),
        (decoders.Strip(" ", 1, 1), "Strip"),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused_by_name(decoder: decoders.Decoder, name: str) -> None:
    backend = tiny_tokenizers.byte_level()
    backend.decoder = decoder
    with pytest.raises(UnsupportedModel, match=f"decoder {name} is not"):
        Tokenizer(backend)


def test_a_tokenizer_without_decoder_is_refused() -> None:
    backend = tiny_tokenizers.byte_level()
    backend.decoder = None
    with pytest.raises(UnsupportedModel, match="without a decoder"):
        Tokenizer(backend)
