"""The way to a server that speaks OpenAI's HTTP protocol: streamed completions, or chat.

By httpx2, since every worker's environment has it already (huggingface_hub brings it) and since it reads
server-sent events itself. Others get it with the extra `bench`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from twinpool.bench.prompts import Prompt
from twinpool.bench.records import Answered
from twinpool.client.errors import ServerUnreachable
from twinpool.errors import InternalError, TwinpoolError

_DONE = "[DONE]"
_SHOWN_CHARACTERS = 300
_BRINGS_TOKENS = ("content", "reasoning_content", "reasoning", "tool_calls")


class HttpRefusal(TwinpoolError):
    """The server answered with a status that is no success, or with an error in mid-stream."""

    reason = "HTTP_ERROR"


@asynccontextmanager
async def http_client(base_url: str, timeout_s: float) -> AsyncIterator[httpx2.AsyncClient]:
    """As many connections as there are requests, none through a proxy: the server is what is measured."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=base_url, timeout=timeout_s, limits=limits, trust_env=False
    ) as client:
        yield client


async def first_model(client: httpx2.AsyncClient) -> str | None:
    """The first model that the server lists, if it lists any. Raises ServerUnreachable."""
    try:
        response = await client.get("/v1/models")
        return str(response.json()["data"][0]["id"]) if response.is_success else None
    except httpx2.HTTPError as error:
        raise _unreachable(error) from error
    except (KeyError, IndexError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class OpenAiSender:
    """body: of every request, beside prompt and number of tokens. The client stays its maker's to close.

    to_text: writes token ids out, which chat needs, as its messages are text.
    """

    client: httpx2.AsyncClient
    endpoint: str
    body: Mapping[str, Any]
    is_chat: bool
    to_text: Callable[[Prompt], str]

    async def send(self, prompt: Prompt, saw_tokens: Callable[[], None]) -> Answered:
        """See Sender. Tokens are counted by the server's `usage`, never by chunks."""
        answer = _Answer()
        try:
            async with self.client.sse(self.endpoint, method="POST", json=self._request(prompt)) as events:
                if not events.response.is_success:
                    await events.response.aread()
                    raise _refusal(events.response.status_code, events.response.text)
                async for event in events:
                    if event.data == _DONE:
                        break
                    if answer.takes(json.loads(event.data)):
                        saw_tokens()
        except httpx2.HTTPError as error:
            raise _unreachable(error) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise InternalError(f"the server sent what is no completion: {error}") from error
        return answer.whole()

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        common = {**self.body, "stream": True, "stream_options": {"include_usage": True}}
        if self.is_chat:
            message = {"role": "user", "content": self.to_text(prompt)}
            return {**common, "messages": [message], "max_completion_tokens": prompt.output_tokens}
        return {**common, "prompt": prompt.content, "max_tokens": prompt.output_tokens}


@dataclass(slots=True)
class _Answer:
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, event: Mapping[str, Any]) -> bool:
        """Whether the event brings tokens. Raises HttpRefusal for an error in mid-stream."""
        if error := event.get("error"):
            raise HttpRefusal(error.get("message", "") if isinstance(error, dict) else str(error))
        self.usage = event.get("usage") or self.usage
        choices = event.get("choices") or ()
        if not choices:
            return False
        choice = choices[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        # A chat's first delta may carry the role alone, and the last chunk the reason alone. A completion's
        # empty text in between is a token whose bytes are no whole character yet.
        if "delta" in choice:
            return any(choice["delta"].get(name) for name in _BRINGS_TOKENS)
        return bool(choice.get("text")) or choice.get("finish_reason") is None

    def whole(self) -> Answered:
        """Raises InternalError for an answer that was cut, or not counted."""
        if self.finish_reason is None:
            raise InternalError("the server ended the stream without saying why")
        if "completion_tokens" not in self.usage:
            raise InternalError("the server sends no usage, so that its tokens cannot be counted")
        return Answered(int(self.usage.get("prompt_tokens", 0)), int(self.usage["completion_tokens"]))


def _refusal(status: int, body: str) -> HttpRefusal:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (KeyError, TypeError, ValueError):
        message = body
    refusal = HttpRefusal(message[:_SHOWN_CHARACTERS] or "no words")
    refusal.reason = f"HTTP_{status}"
    return refusal


def _unreachable(error: httpx2.HTTPError) -> ServerUnreachable:
    return ServerUnreachable(f"no connection to the server, or it broke: {error!r}")
