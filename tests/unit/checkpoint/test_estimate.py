"""How much memory a model and its cache need."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.support.models.llama_config import LLAMA
from twinpool.checkpoint.estimate import MemoryEstimate, find_description
from twinpool.engine.models.registry import describe_model
from twinpool.errors import ModelSourceError

_LLAMA_2_7B = describe_model(
    LLAMA
    | {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "tie_word_embeddings": False,
    }
)


def test_the_cache_of_4096_tokens_of_llama_2_7b_takes_two_gibibytes() -> None:
    estimate = MemoryEstimate(_LLAMA_2_7B, "bfloat16")
    assert estimate.kv_bytes_per_token == 524_288
    assert estimate.kv_bytes(4096) == 2_147_483_648
    assert estimate.kv_bytes(4096, num_requests=3) == 3 * 2_147_483_648
    assert MemoryEstimate(_LLAMA_2_7B, "float32").kv_bytes(4096) == 2 * 2_147_483_648


def test_the_weights_of_llama_2_7b_are_its_published_parameter_count() -> None:
    assert MemoryEstimate(_LLAMA_2_7B, "bfloat16").weights_bytes == 2 * 6_738_415_616
    # A scale and a minimum of two bytes each for 32 weights.
    assert MemoryEstimate(_LLAMA_2_7B, "bfloat16", "int8").weights_bytes == 6_738_415_616 * 36 // 32
    assert MemoryEstimate(_LLAMA_2_7B, "bfloat16", "int4").weights_bytes == 6_738_415_616 * 20 // 32
    assert MemoryEstimate(_LLAMA_2_7B, "float32", "int4").weights_bytes == 4 * 6_738_415_616


def test_tied_embeddings_count_once() -> None:
    tied = dataclasses.replace(_LLAMA_2_7B, tied_output=True)
    saved = (
        MemoryEstimate(_LLAMA_2_7B, "float32").weights_bytes - MemoryEstimate(tied, "float32").weights_bytes
    )
    assert saved == 4 * 32000 * 4096


@pytest.mark.parametrize(
    ("memory_bytes", "num_tokens", "block_size", "fit"),
    [
        (16 * 524_288, 16, 1, 1),
        (16 * 524_288 - 1, 16, 1, 0),
        (32 * 524_288, 17, 1, 1),
        (32 * 524_288, 16, 16, 2),
        (32 * 524_288, 17, 16, 1),  # the second block belongs to the first request
        (47 * 524_288, 16, 16, 2),  # no third whole block
    ],
)
def test_requests_take_whole_blocks(memory_bytes: int, num_tokens: int, block_size: int, fit: int) -> None:
    estimate = MemoryEstimate(_LLAMA_2_7B, "bfloat16")
    assert estimate.requests_that_fit(memory_bytes, num_tokens, block_size) == fit


def test_a_folder_with_nothing_but_a_config_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert find_description(str(tmp_path)) == describe_model(LLAMA)


def test_a_model_that_was_not_pulled_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="twinpool pull smollm2-135m-instruct"):
        find_description("smollm2-135m-instruct", tmp_path)
