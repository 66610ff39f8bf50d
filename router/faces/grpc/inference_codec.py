"""Where the Inference service's protobuf messages become dataclasses and back."""

from __future__ import annotations

from typing import cast

from router.entrance.asked import (
    Conversation,
    GenerationAsked,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from router.entrance.chunks import Chunk, Summary
from twinpool.sampling.params import SamplingOptions
from twinpool.types import FinishReason, ModelCard
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import types_pb2
from twinpool.v1.sampling_pb2 import SamplingParams as SamplingMessage
from twinpool.wire import numbers

_FINISH_REASONS = numbers(FinishReason, types_pb2.FinishReason)


def generate_asked(message: pb.GenerateRequest) -> GenerationAsked:
    """Read a Generate call."""
    prompt: Prompt | None = None
    match message.WhichOneof("prompt"):
        case "text":
            prompt = TextPrompt(message.text)
        case "token_ids":
            prompt = TokenPrompt(message.token_ids.ids)
    return _asked(message, prompt)


def chat_asked(message: pb.ChatRequest) -> GenerationAsked:
    """Read a Chat call."""
    return _asked(message, Conversation(message.messages))


def _asked(message: pb.GenerateRequest | pb.ChatRequest, prompt: Prompt | None) -> GenerationAsked:
    return GenerationAsked(
        request_id=message.request_id,
        model=message.model,
        prompt=prompt,
        sampling=_sampling_asked(message.sampling),
        skip_special_tokens=skip_special_tokens(message.output),
        return_prompt_token_ids=message.output.return_prompt_token_ids,
    )


def _sampling_asked(message: SamplingMessage) -> SamplingOptions:
    """Those fields that the client gave; the names are the same."""
    return cast("SamplingOptions", {field.name: value for field, value in message.ListFields()})


def skip_special_tokens(message: pb.OutputOptions | pb.DetokenizeRequest) -> bool:
    """Absent means yes."""
    return message.skip_special_tokens if message.HasField("skip_special_tokens") else True


def add_special_tokens(message: pb.TokenizeRequest) -> bool:
    """Absent means yes."""
    return message.add_special_tokens if message.HasField("add_special_tokens") else True


def chunk(value: Chunk) -> pb.Chunk:
    """Write new tokens."""
    token_ids = [token.id for token in value.tokens]
    message = pb.Chunk(choice_index=value.choice_index, text=value.text, token_ids=token_ids)
    if value.summary is not None:
        message.finish_reason = _FINISH_REASONS[value.summary.finish_reason]
        message.summary.CopyFrom(_summary(value.summary))
    return message


def _summary(value: Summary) -> pb.Summary:
    timing, workers = value.timing, value.workers
    return pb.Summary(
        usage=pb.Usage(
            prompt_tokens=value.usage.prompt_tokens, completion_tokens=value.usage.completion_tokens
        ),
        timing=pb.Timing(
            queue_s=timing.queue_s,
            prefill_s=timing.prefill_s,
            handoff_wait_s=timing.handoff_wait_s,
            decode_s=timing.decode_s,
        ),
        workers=pb.ServedBy(prefill=workers.prefill, decode=workers.decode),
        seed=value.seed,
        prompt_token_ids=value.prompt_token_ids,
        num_resumes=value.num_resumes,
    )


def abort_result(request_id: str, aborted: bool) -> pb.AbortResult:
    """Write one id's outcome."""
    outcome = pb.ABORT_OUTCOME_ABORTED if aborted else pb.ABORT_OUTCOME_NOT_IN_FLIGHT
    return pb.AbortResult(request_id=request_id, outcome=outcome)


def model(card: ModelCard) -> pb.Model:
    """Write what clients may know of the model."""
    return pb.Model(
        name=card.name,
        max_context_tokens=card.max_context_tokens,
        vocab_size=card.vocab_size,
        eos_token_ids=card.eos_token_ids,
        dtype=card.dtype,
    )
