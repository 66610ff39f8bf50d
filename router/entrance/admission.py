"""The rules of admission, pure: each refuses what could never be served, naming the field and the limit.

Every function raises `InvalidRequest` and returns nothing, but for `sampling_params`, which also fills in the
defaults. Field paths are those of the request message, relative to its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router.entrance.asked import Conversation, Prompt, TextPrompt, TokenPrompt
from router.entrance.request_limits import MAX_BYTES_PER_TOKEN, RequestLimits
from twinpool.errors import InvalidRequest
from twinpool.sampling.params import SamplingOptions, SamplingParams, check_ranges, completed

MAX_REQUEST_ID_BYTES = 128
MAX_ABORT_IDS = 1000
MAX_INTERVAL_S = 3600.0
MIN_INTERVAL_S = 0.1
ROLES = ("system", "user", "assistant")

# Dividing logits by less than this overflows; the choice is the greedy one long before.
GREEDY_BELOW_TEMPERATURE = 1e-5


def check_request_id(request_id: str, field: str = "request_id") -> None:
    """An empty id is fine: the server draws one."""
    num_bytes = len(request_id.encode())
    if num_bytes > MAX_REQUEST_ID_BYTES:
        raise InvalidRequest(field, f"{field} has {num_bytes} bytes; the limit is {MAX_REQUEST_ID_BYTES}")
    if not request_id.isprintable():
        raise InvalidRequest(field, f"{field} must be printable, not {request_id!r}")


def check_abort_ids(request_ids: Sequence[str]) -> None:
    """Each must be one that a request could have; that of no request in flight is fine."""
    if len(request_ids) > MAX_ABORT_IDS:
        raise InvalidRequest(
            "request_ids", f"request_ids has {len(request_ids)} entries; the limit is {MAX_ABORT_IDS}"
        )
    for index, request_id in enumerate(request_ids):
        field = f"request_ids[{index}]"
        if not request_id:
            raise InvalidRequest(field, f"{field} must not be empty")
        check_request_id(request_id, field)


def check_prompt(prompt: Prompt | None, limits: RequestLimits) -> str:
    """Check a prompt before it is tokenized. Return its field path, for `sampling_params`."""
    match prompt:
        case None:
            raise InvalidRequest("prompt", "a prompt is required: text or token_ids")
        case TextPrompt(text):
            if not text:
                raise InvalidRequest("text", "text must not be empty")
            check_text("text", text, limits)
            return "text"
        case TokenPrompt(ids):
            if not ids:
                raise InvalidRequest("token_ids.ids", "token_ids.ids must not be empty")
            check_count("token_ids.ids", len(ids), limits)
            check_token_ids("token_ids.ids", ids, limits)
            return "token_ids.ids"
        case Conversation():
            _check_conversation(prompt, limits)
            return "messages"


def check_count(field: str, count: int, limits: RequestLimits) -> None:
    """Refuse more token ids or messages than the context has tokens, before anybody looks at each."""
    if count > limits.context_tokens:
        raise InvalidRequest(
            field, f"{field} has {count} entries; the limit is {limits.context_tokens} (the context's tokens)"
        )


def check_text(field: str, text: str, limits: RequestLimits) -> None:
    """Refuse a text so long that it cannot fit the context, however it is tokenized."""
    num_bytes = len(text.encode())
    if num_bytes > limits.text_bytes:
        raise InvalidRequest(
            field,
            f"{field} has {num_bytes} bytes; the limit is {limits.text_bytes} "
            f"({MAX_BYTES_PER_TOKEN} for each of the context's {limits.context_tokens} tokens)",
        )


def check_token_ids(field: str, ids: Sequence[int], limits: RequestLimits) -> None:
    """Refuse ids outside the vocabulary, naming the first."""
    if not ids or (min(ids) >= 0 and max(ids) < limits.vocab_size):
        return
    index, wrong = next((i, id_) for i, id_ in enumerate(ids) if not 0 <= id_ < limits.vocab_size)
    raise InvalidRequest(
        f"{field}[{index}]", f"{field}[{index}] must be in 0..{limits.vocab_size - 1}, not {wrong}"
    )


def check_interval(interval_s: float) -> None:
    """Refuse an interval that would flood or never fire, NaN included."""
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        raise InvalidRequest(
            "interval_s",
            f"interval_s must be in {MIN_INTERVAL_S:g}..{MAX_INTERVAL_S:g} seconds, not {interval_s:g}",
        )


def sampling_params(
    asked: SamplingOptions, *, prompt_field: str, num_prompt_tokens: int, limits: RequestLimits, seed: int
) -> SamplingParams:
    """Check sampling against its ranges and a prompt's length, and fill in the defaults.

    seed: used if the client gave none. An absent max_tokens becomes whatever still fits.
    """
    check_ranges(asked)
    max_tokens = _max_tokens(asked.get("max_tokens"), prompt_field, num_prompt_tokens, limits)
    params = completed(asked, max_tokens=max_tokens, seed=seed)
    return replace(
        params,
        temperature=0.0 if params.temperature < GREEDY_BELOW_TEMPERATURE else params.temperature,
        top_k=0 if params.top_k >= limits.vocab_size else params.top_k,
    )


def _max_tokens(asked: int | None, prompt_field: str, num_prompt_tokens: int, limits: RequestLimits) -> int:
    room = limits.request_tokens - num_prompt_tokens
    if num_prompt_tokens < 1:
        raise InvalidRequest(prompt_field, f"{prompt_field} has no tokens")
    if room < 1:
        raise InvalidRequest(
            prompt_field,
            f"{prompt_field} has {num_prompt_tokens} tokens; the limit is {limits.request_tokens - 1} "
            f"(the {limits.binding} holds {limits.request_tokens} tokens, answer included)",
        )
    if asked is None:
        return room
    if asked > room:
        raise InvalidRequest(
            "sampling.max_tokens",
            f"sampling.max_tokens is {asked}; the limit after a prompt of {num_prompt_tokens} tokens is "
            f"{room} (the {limits.binding} holds {limits.request_tokens} tokens)",
        )
    return asked


def _check_conversation(conversation: Conversation, limits: RequestLimits) -> None:
    if not conversation.turns:
        raise InvalidRequest("messages", "messages must not be empty")
    check_count("messages", len(conversation.turns), limits)
    for index, turn in enumerate(conversation.turns):
        if turn.role not in ROLES:
            raise InvalidRequest(
                f"messages[{index}].role",
                f"messages[{index}].role must be one of {', '.join(ROLES)}, not {turn.role[:32]!r}",
            )
    check_text("messages", "".join(turn.content for turn in conversation.turns), limits)
