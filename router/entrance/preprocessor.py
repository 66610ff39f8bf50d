"""Turns what a client asks into a request that can be served, or refuses it, typed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from router.entrance import admission
from router.entrance.asked import Conversation, GenerationAsked, Prompt, TextPrompt, TokenPrompt
from router.entrance.request_limits import RequestLimits
from router.entrance.text import TextThreads
from router.scheduling.values import Request
from twinpool.errors import ModelNotFound
from twinpool.types import ModelCard


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """Checks, tokenizes and completes requests. max_request_tokens, require_room: the `Dispatcher`'s."""

    card: ModelCard
    text: TextThreads
    max_request_tokens: Callable[[], int]
    require_room: Callable[[], None]

    @property
    def limits(self) -> RequestLimits:
        """What model and pools can hold now."""
        return RequestLimits(
            self.card.max_context_tokens, self.card.vocab_size, pool_tokens=self.max_request_tokens()
        )

    def check_model(self, name: str) -> None:
        """Raise ModelNotFound unless the name is empty or served here."""
        if name not in ("", self.card.name):
            raise ModelNotFound(f"model {name[:128]!r} is not served here; {self.card.name!r} is")

    async def prepare(self, asked: GenerationAsked, request_id: str) -> Request:
        """Make a request. Raises InvalidRequest, ModelNotFound and, before a text is tokenized in vain, what
        `require_room` raises; QueueFull also while texts are swamped.
        """
        self.check_model(asked.model)
        prompt_field = admission.check_prompt(asked.prompt, self.limits)
        prompt_ids = await self._prompt_ids(asked.prompt)
        params = admission.sampling_params(
            asked.sampling,
            prompt_field=prompt_field,
            num_prompt_tokens=len(prompt_ids),
            limits=self.limits,
            seed=secrets.randbits(64),
        )
        return Request(request_id, prompt_ids, params)

    async def _prompt_ids(self, prompt: Prompt | None) -> tuple[int, ...]:
        match prompt:
            case TextPrompt(text):
                self.require_room()
                return await self.text.encode(text, add_special_tokens=True)
            case Conversation(turns):
                self.require_room()
                return await self.text.encode_chat(turns)
            case TokenPrompt(ids):
                return tuple(ids)
            case None:
                raise ValueError("a missing prompt was refused before")
