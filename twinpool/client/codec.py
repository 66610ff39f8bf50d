"""Client values to protobuf messages of the inference service, and back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from twinpool.client.fields import extend_ids, refusal, set_field, several, shown, text_of
from twinpool.client.values import Chunk, Options, Prompt, Summary
from twinpool.errors import InternalError, InvalidRequest
from twinpool.sampling.params import SamplingOptions, check_ranges
from twinpool.types import FinishReason, ModelCard, ServedBy, Timing, Usage
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1 import types_pb2
from twinpool.v1.sampling_pb2 import SamplingParams
from twinpool.wire import numbers

_OUTPUT_FIELDS = ("skip_special_tokens", "return_prompt_token_ids")
_FINISH_REASONS: Mapping[int, FinishReason | None] = {
    number: reason for reason, number in numbers(FinishReason, types_pb2.FinishReason).items()
} | {types_pb2.FINISH_REASON_UNSPECIFIED: None}


def generate_request(prompt: Prompt, options: Options) -> pb.GenerateRequest:
    """Raises InvalidRequest for values that no message can carry, TypeError for unknown options."""
    request = pb.GenerateRequest(sampling=_sampling(options), output=_output(options))
    _name(request, options)
    if isinstance(prompt, str):
        set_field(request, "text", prompt)
    else:
        # An empty list is a prompt too, for the server to refuse.
        request.token_ids.SetInParent()
        extend_ids(request.token_ids.ids, prompt, "token_ids.ids")
    return request


def chat_request(messages: Sequence[Mapping[str, str]], options: Options) -> pb.ChatRequest:
    """messages: each with role and content, oldest first. Raises as generate_request does."""
    request = pb.ChatRequest(sampling=_sampling(options), output=_output(options))
    _name(request, options)
    for index, message in enumerate(several(messages, "messages", "a list of them")):
        _add_message(request, message, f"messages[{index}]")
    return request


def abort_request(request_ids: str | Iterable[str]) -> pb.AbortRequest:
    """One id or several."""
    request = pb.AbortRequest()
    ids = [request_ids] if isinstance(request_ids, str) else request_ids
    for request_id in several(ids, "request_ids", "one id or several"):
        with refusal("request_ids", "Unicode text", request_id):
            request.request_ids.append(text_of(request_id))
    return request


def tokenize_request(text: str, add_special_tokens: bool) -> pb.TokenizeRequest:
    """Raises InvalidRequest for text that is not Unicode."""
    request = pb.TokenizeRequest()
    set_field(request, "add_special_tokens", add_special_tokens)
    set_field(request, "text", text)
    return request


def detokenize_request(token_ids: Iterable[int], skip_special_tokens: bool) -> pb.DetokenizeRequest:
    """Raises InvalidRequest for ids that are no 32-bit integers."""
    request = pb.DetokenizeRequest()
    set_field(request, "skip_special_tokens", skip_special_tokens)
    extend_ids(request.token_ids, token_ids, "token_ids")
    return request


def chunk_from(response: pb.GenerateResponse | pb.ChatResponse) -> Chunk:
    """The chunk of one message of a stream."""
    chunk = response.chunk
    if chunk.finish_reason not in _FINISH_REASONS:
        raise InternalError(f"finish reason {chunk.finish_reason} is unknown to this client")
    return Chunk(
        text=chunk.text,
        token_ids=tuple(chunk.token_ids),
        choice_index=chunk.choice_index,
        finish_reason=_FINISH_REASONS[chunk.finish_reason],
        summary=_summary_from(chunk.summary) if chunk.HasField("summary") else None,
    )


def aborted_from(response: pb.AbortResponse) -> dict[str, bool]:
    """For each id, whether a request was in flight and has been ended."""
    aborted = {result.request_id: False for result in response.results}
    # An id that was named twice is said to be over the second time.
    aborted.update(
        {each.request_id: True for each in response.results if each.outcome == pb.ABORT_OUTCOME_ABORTED}
    )
    return aborted


def models_from(response: pb.ListModelsResponse) -> tuple[ModelCard, ...]:
    """The models served."""
    return tuple(
        ModelCard(
            name=model.name,
            max_context_tokens=model.max_context_tokens,
            vocab_size=model.vocab_size,
            eos_token_ids=tuple(model.eos_token_ids),
            dtype=model.dtype,
        )
        for model in response.models
    )


def _summary_from(summary: pb.Summary) -> Summary:
    workers, timing = summary.workers, summary.timing
    return Summary(
        usage=Usage(summary.usage.prompt_tokens, summary.usage.completion_tokens),
        timing=Timing(timing.queue_s, timing.prefill_s, timing.handoff_wait_s, timing.decode_s),
        workers=ServedBy(workers.prefill, workers.decode if workers.HasField("decode") else None),
        seed=summary.seed,
        prompt_token_ids=tuple(summary.prompt_token_ids),
        num_resumes=summary.num_resumes,
    )


def _name(request: pb.GenerateRequest | pb.ChatRequest, options: Options) -> None:
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}")
    # Drawn here rather than by the server, so that the caller can abort before the first token.
    set_field(request, "request_id", options.get("request_id") or uuid.uuid4().hex)
    set_field(request, "model", options.get("model"))


def _add_message(request: pb.ChatRequest, message: Mapping[str, str], path: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidRequest(path, f"{path} must have a role and a content, not be {shown(message)}")
    added = request.messages.add()
    for name, value in message.items():
        if name not in added.DESCRIPTOR.fields_by_name:
            raise InvalidRequest(path, f"{path} has a role and a content, but no {shown(name)}")
        set_field(added, name, value, f"{path}.")


def _sampling(options: Options) -> SamplingParams:
    sampling = SamplingParams()
    for name in SamplingOptions.__annotations__:
        set_field(sampling, name, options.get(name), "sampling.")
    check_ranges(options)
    return sampling


def _output(options: Options) -> pb.OutputOptions:
    output = pb.OutputOptions()
    for name in _OUTPUT_FIELDS:
        set_field(output, name, options.get(name), "output.")
    return output
