"""What clients ask for, before it is checked; absent fields are None.

Sequences may be the face's own, so that nothing is spent on each entry before their number is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twinpool.sampling.params import SamplingOptions


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text that the router tokenizes."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    ids: Sequence[int]


class Turn(Protocol):
    """One message of a conversation."""

    @property
    def role(self) -> str:
        """One of `admission.ROLES`."""
        ...

    @property
    def content(self) -> str:
        """What was said."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, oldest first, for the model's chat template."""

    turns: Sequence[Turn]


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
