"""A Qwen2, pulled from a folder and from a GGUF file, gives transformers' greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from tests.support.models.tiny_models import write_folder, write_gguf
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.checkpoint.tokenizer import Tokenizer
from twinpool.engine.batch import DecodeRow, PrefillChunk, SamplingRow
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.runner import Engine
from twinpool.errors import ModelSourceError
from twinpool.kv.storage import KvStorage
from twinpool.prepare.pull import pull
from twinpool.sampling.params import SamplingParams

NUM_TOKENS = 12
PROMPT = tuple(range(3, 40))
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)


def our_tokens(model: PreparedModel) -> list[int]:
    """Computed in two chunks, then token by token, over blocks in no order."""
    layout = cache_layout(model.description, block_size=4, dtype="float32")
    engine = Engine.load(model, KvStorage(layout, 16))
    table = [11, 2, 7, 0, 9, 14, 5, 1, 12, 3, 15, 8, 4]
    engine.prefill([PrefillChunk(PROMPT[:18], 0, table)])
    (token,) = engine.prefill([PrefillChunk(PROMPT[18:], 18, table, SamplingRow(GREEDY, 0, len(PROMPT)))])
    assert token is not None
    tokens = [token.id]
    for position in range(len(PROMPT), len(PROMPT) + NUM_TOKENS - 1):
        row = DecodeRow(tokens[-1], position, table, SamplingRow(GREEDY, 0, position + 1))
        tokens += [drawn.id for drawn in engine.decode([row])]
    return tokens


def their_tokens(model: Any) -> list[int]:
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(NUM_TOKENS):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


def with_large_biases(folder: Path) -> Any:
    """The folder's model, after its biases, which transformers starts at 0, were given values that matter."""
    model: Any = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data.normal_(0, 2.0)
        elif parameter.dim() > 1:
            parameter.data.normal_(0, 0.1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder(tmp_path: Path, tied: bool) -> None:
    folder = write_folder(tmp_path / "tiny", family="qwen2", tied=tied)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    theirs = with_large_biases(folder)
    prepared = PreparedModel.load(pull(str(folder), cache_dir=tmp_path))
    assert our_tokens(prepared) == their_tokens(theirs)
    assert prepared.description.tied_output is tied
    tokenizer = Tokenizer.load(prepared.folder)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "the"}])
    assert chat == tokenizer.encode("the<|im_end|>")


def test_a_gguf_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", family="qwen2")
    theirs = Qwen2ForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    prepared = PreparedModel.load(pull(str(file), cache_dir=tmp_path))
    ours, expected = load_file(prepared.weights_file), theirs.state_dict()
    expected.pop("lm_head.weight")  # tied
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert our_tokens(prepared) == their_tokens(theirs)


def test_a_missing_bias_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", family="qwen2", metadata={"qwen2.block_count": 3})
    with pytest.raises(ModelSourceError, match=r"12 tensors are missing.*layers\.2"):
        pull(str(file), cache_dir=tmp_path)
