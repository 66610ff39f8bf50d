"""The default model's greedy answer to a chat, in every number format."""

from __future__ import annotations

import pytest

from twinpool.checkpoint.prepared import PreparedModel
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.engine.batch import DecodeRow, PrefillChunk, SamplingRow
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.port import KernelSettings
from twinpool.engine.runner import Engine
from twinpool.kv.storage import KvStorage
from twinpool.sampling.params import SamplingParams

NUM_BLOCKS = 8
MOST_TOKENS = 16
GREEDY = SamplingParams(max_tokens=MOST_TOKENS, temperature=0.0)


def answer(model: PreparedModel, dtype: str, settings: KernelSettings, question: str) -> str:
    """What the model says, up to its own end or MOST_TOKENS."""
    tokenizer = Tokenizer.load(model.folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}])
    storage = KvStorage(cache_layout(model.description, block_size=16, dtype=dtype), NUM_BLOCKS)
    engine = Engine.load(model, storage, settings)
    table, position = range(NUM_BLOCKS), len(prompt)
    (token,) = engine.prefill([PrefillChunk(prompt, 0, table, SamplingRow(GREEDY, 0, position))])
    assert token is not None
    tokens = [token.id]
    while tokens[-1] not in model.eos_token_ids and len(tokens) < MOST_TOKENS:
        row = DecodeRow(tokens[-1], position, table, SamplingRow(GREEDY, 0, position + 1))
        tokens += [drawn.id for drawn in engine.decode([row])]
        position += 1
    return tokenizer.decode(tokens)


@pytest.mark.parametrize("kernels", ["torch", "native"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_near_ties_are_told_apart(default_model: PreparedModel, dtype: str, kernels: str) -> None:
    """At its first token the two best logits lie 0.1 apart at about 20, where bfloat16 has steps of 0.125."""
    weights = "bf16" if dtype == "bfloat16" else "auto"
    settings = KernelSettings(kernels=kernels, weights=weights)
    words = answer(default_model, dtype, settings, "What is the capital of France?")
    assert words == "The capital of France is Paris."


def test_the_model_answers_in_its_own_four_bits(default_model: PreparedModel) -> None:
    settings = KernelSettings(kernels="native")
    words = answer(default_model, "bfloat16", settings, "What is 2+2?")
    assert words == "The answer to this classic math problem is 4."
