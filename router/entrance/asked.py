"""What clients ask for, before it is checked; absent fields are None."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.sampling.params import SamplingOptions


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
class GenerationAsked:
    """A Generate or Chat call before it is checked. prompt: None if the client gave none."""

    request_id: str
    model: str
    prompt: Prompt | None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    skip_special_tokens: bool = True
    return_prompt_token_ids: bool = False
