"""What clients ask for, before it is checked; absent fields are None."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text that the router tokenizes."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, oldest first, for the model's chat template."""

    turns: tuple[Turn, ...]


Prompt = TextPrompt | TokenPrompt | Conversation


@dataclass(frozen=True, slots=True)
class SamplingAsked:
    """Sampling parameters before they are checked and completed; see `SamplingParams` in the proto."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationAsked:
    """A Generate or Chat call before it is checked. prompt: None if the client gave none."""

    request_id: str
    model: str
    prompt: Prompt | None
    sampling: SamplingAsked = field(default_factory=SamplingAsked)
    skip_special_tokens: bool = True
    return_prompt_token_ids: bool = False
