"""The engine's greedy tokens for the default model are transformers' own, in both orders of work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from torch import Tensor

from tests.support.models.reference import ReferenceCase, reference_case
from twinpool.checkpoint.prepared import PreparedModel
from twinpool.engine.apart import step_apart
from twinpool.engine.batch import DecodeRow, PrefillChunk, SamplingRow
from twinpool.engine.cache_layout import cache_layout
from twinpool.engine.kernels.port import KernelSettings
from twinpool.engine.kernels.torch_cpu.attention import TorchAttention
from twinpool.engine.kernels.torch_cpu.attention_plan import DecodeGroup, StepPlan
from twinpool.engine.runner import Engine
from twinpool.kv.storage import KvStorage, copy_blocks
from twinpool.sampling.params import SamplingParams
from twinpool.worker.pulse import Pulse

NUM_TOKENS = 24
HALFWAY = 15
"""Of the model's 30 layers."""
BLOCK_SIZE = 16
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
CASES = ("1 tokens", "17 tokens", "chat", "257 tokens")


@pytest.fixture(scope="module", params=["torch", "native"])
def engine(request: pytest.FixtureRequest, default_model: PreparedModel) -> Engine:
    # One thread: a second waits for a core while other work runs on the machine.
    layout = cache_layout(default_model.description, block_size=BLOCK_SIZE, dtype="float32")
    engine = Engine.load(default_model, KvStorage(layout, 96), KernelSettings(kernels=request.param))
    engine.warm_up()
    return engine


def greedy(position: int) -> SamplingRow:
    return SamplingRow(GREEDY, 0, position)


def tables(cases: Sequence[ReferenceCase], last_block: int) -> Iterator[list[int]]:
    """Blocks counted downwards, so that no context lies in order."""
    for case in cases:
        count = -(-(len(case.prompt_ids) + NUM_TOKENS) // BLOCK_SIZE)
        yield list(range(last_block, last_block - count, -1))
        last_block -= count


def prefill(engine: Engine, case: ReferenceCase, table: Sequence[int], chunk: int) -> int:
    """The first token of a prompt that is computed in chunks."""
    ids = case.prompt_ids
    for start in range(0, len(ids), chunk):
        end = min(start + chunk, len(ids))
        sample = greedy(end) if end == len(ids) else None
        (token,) = engine.prefill([PrefillChunk(ids[start:end], start, table, sample)])
    assert token is not None
    return token.id


def decode(
    engine: Engine, cases: Sequence[ReferenceCase], outputs: list[list[int]], places: list[list[int]]
) -> None:
    """Add tokens to all outputs, one batch a step, until each has NUM_TOKENS."""
    for _ in range(NUM_TOKENS - 1):
        rows = []
        for case, output, table in zip(cases, outputs, places, strict=True):
            position = len(case.prompt_ids) + len(output) - 1
            rows.append(DecodeRow(output[-1], position, table, greedy(position + 1)))
        for output, token in zip(outputs, engine.decode(rows), strict=True):
            output.append(token.id)


@pytest.mark.parametrize("name", CASES)
def test_a_prompt_alone(engine: Engine, name: str) -> None:
    case = reference_case(name)
    places = list(tables([case], 95))
    outputs = [[prefill(engine, case, places[0], chunk=100)]]
    decode(engine, [case], outputs, places)
    assert outputs[0] == list(case.output_ids[:NUM_TOKENS])


def test_prompts_together(engine: Engine) -> None:
    cases = [reference_case(name) for name in CASES]
    places = list(tables(cases, 95))
    chunks = [
        PrefillChunk(case.prompt_ids, 0, table, greedy(len(case.prompt_ids)))
        for case, table in zip(cases, places, strict=True)
    ]
    outputs = [[token.id] for token in engine.prefill(chunks) if token is not None]
    decode(engine, cases, outputs, places)
    assert outputs == [list(case.output_ids[:NUM_TOKENS]) for case in cases]


@pytest.mark.parametrize("engine", ["torch"], indirect=True)  # a native step has no middle to fail in
def test_prompts_together_where_their_common_steps_fail_halfway(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend, pulse = TorchAttention.attend, Pulse()

    def fail_halfway(self: TorchAttention, plan: StepPlan, layer: int, *tensors: Tensor) -> None:
        attend(self, plan, layer, *tensors)
        num_together = sum(part.num_rows if isinstance(part, DecodeGroup) else 1 for part in plan.parts)
        if layer == HALFWAY and num_together > 1:
            raise RuntimeError("as told")

    monkeypatch.setattr(TorchAttention, "attend", fail_halfway)
    for name in ("prefill", "decode"):
        apart = partial(step_apart, getattr(engine, name), beat=pulse.beat)
        monkeypatch.setattr(engine, name, apart)
    test_prompts_together(engine)
    assert pulse.turns == len(CASES) * NUM_TOKENS


def test_blocks_handed_to_another_storage(engine: Engine, default_model: PreparedModel) -> None:
    case = reference_case("chat")
    (table,) = tables([case], 95)
    first = prefill(engine, case, table, chunk=256)
    decoder = Engine.load(default_model, KvStorage(engine.storage.layout, 8))
    used = -(-len(case.prompt_ids) // BLOCK_SIZE)
    there = [6, 1, 4, 0]
    copy_blocks(engine.storage, table[:used], decoder.storage, there[:used])
    outputs = [[first]]
    decode(decoder, [case], outputs, [there])
    assert outputs[0] == list(case.output_ids[:NUM_TOKENS])
