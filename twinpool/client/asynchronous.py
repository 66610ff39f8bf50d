"""The asynchronous client of the inference service; the same methods as the blocking one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, Unpack

from twinpool.client import codec
from twinpool.client.blocking import DEFAULT_TARGET
from twinpool.client.connections import DEFAULT_TIMEOUT_S, AsyncConnection
from twinpool.client.streams import AsyncStream
from twinpool.client.values import Chunk, Completion, Options, Prompt, completion_from
from twinpool.types import ModelCard
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1.inference_pb2_grpc import InferenceStub

if TYPE_CHECKING:
    from twinpool.v1.inference_pb2_grpc import InferenceAsyncStub


class AsyncClient:
    """Client's twin for asyncio: make it where the event loop runs, and use it there only."""

    def __init__(self, target: str = DEFAULT_TARGET, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> None:
        self._connection = AsyncConnection(target, timeout)
        self._stub: InferenceAsyncStub = InferenceStub(self._connection.channel)

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream[Chunk]:
        """Stream the continuation of a prompt: text, or token ids. Leaving the stream cancels the request."""
        request = codec.generate_request(prompt, options)
        return self._connection.stream(self._stub.Generate, request, codec.chunk_from, timeout)

    async def complete(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """The whole continuation of a prompt, with the prompt's token ids."""
        options["return_prompt_token_ids"] = True
        async with self.generate(prompt, timeout=timeout, **options) as chunks:
            return completion_from([chunk async for chunk in chunks])

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream[Chunk]:
        """Stream the answer to a conversation of `{"role": ..., "content": ...}`, oldest first."""
        request = codec.chat_request(messages, options)
        return self._connection.stream(self._stub.Chat, request, codec.chunk_from, timeout)

    async def complete_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer to a conversation."""
        options["return_prompt_token_ids"] = True
        async with self.chat(messages, timeout=timeout, **options) as chunks:
            return completion_from([chunk async for chunk in chunks])

    async def abort(
        self, request_ids: str | Iterable[str], *, timeout: float | None = None
    ) -> dict[str, bool]:
        """End requests. For each id: whether it was in flight. Unknown and finished ids are fine."""
        response = await self._connection.call(self._stub.Abort, codec.abort_request(request_ids), timeout)
        return codec.aborted_from(response)

    async def tokenize(
        self, text: str, *, add_special_tokens: bool = True, timeout: float | None = None
    ) -> tuple[int, ...]:
        """The token ids that generate would read the text as."""
        request = codec.tokenize_request(text, add_special_tokens)
        return tuple((await self._connection.call(self._stub.Tokenize, request, timeout)).token_ids)

    async def detokenize(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, timeout: float | None = None
    ) -> str:
        """The text that generate would write for the ids."""
        request = codec.detokenize_request(token_ids, skip_special_tokens)
        return (await self._connection.call(self._stub.Detokenize, request, timeout)).text

    async def models(self, *, timeout: float | None = None) -> tuple[ModelCard, ...]:
        """The models served."""
        response = await self._connection.call(self._stub.ListModels, pb.ListModelsRequest(), timeout)
        return codec.models_from(response)

    async def close(self) -> None:
        """Cancel what is running and leave the server."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
