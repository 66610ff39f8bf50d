"""The blocking client of the inference service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self, Unpack

from twinpool.client import codec
from twinpool.client.connections import DEFAULT_TIMEOUT_S, Connection
from twinpool.client.streams import Stream
from twinpool.client.values import Chunk, Completion, Options, Prompt, completion_from
from twinpool.types import ModelCard
from twinpool.v1 import inference_pb2 as pb
from twinpool.v1.inference_pb2_grpc import InferenceStub

DEFAULT_TARGET = "127.0.0.1:50051"


class Client:
    """Sends prompts to a Twinpool server; may be shared between threads.

    timeout (here for every call, or given to one): seconds the call may take as a whole.
    All methods raise the errors of `twinpool.errors`, or ServerUnreachable.
    """

    def __init__(self, target: str = DEFAULT_TARGET, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> None:
        self._connection = Connection(target, timeout)
        self._stub = InferenceStub(self._connection.channel)

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Stream[Chunk]:
        """Stream the continuation of a prompt: text, or token ids. Leaving the stream cancels the request."""
        request = codec.generate_request(prompt, options)
        return self._connection.stream(self._stub.Generate, request, codec.chunk_from, timeout)

    def complete(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """The whole continuation of a prompt, with the prompt's token ids."""
        options["return_prompt_token_ids"] = True
        with self.generate(prompt, timeout=timeout, **options) as chunks:
            return completion_from(list(chunks))

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Stream[Chunk]:
        """Stream the answer to a conversation of `{"role": ..., "content": ...}`, oldest first."""
        request = codec.chat_request(messages, options)
        return self._connection.stream(self._stub.Chat, request, codec.chunk_from, timeout)

    def complete_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer to a conversation."""
        options["return_prompt_token_ids"] = True
        with self.chat(messages, timeout=timeout, **options) as chunks:
            return completion_from(list(chunks))

    def abort(self, request_ids: str | Iterable[str], *, timeout: float | None = None) -> dict[str, bool]:
        """End requests. For each id: whether it was in flight. Unknown and finished ids are fine."""
        response = self._connection.call(self._stub.Abort, codec.abort_request(request_ids), timeout)
        return codec.aborted_from(response)

    def tokenize(
        self, text: str, *, add_special_tokens: bool = True, timeout: float | None = None
    ) -> tuple[int, ...]:
        """The token ids that generate would read the text as."""
        request = codec.tokenize_request(text, add_special_tokens)
        return tuple(self._connection.call(self._stub.Tokenize, request, timeout).token_ids)

    def detokenize(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = True, timeout: float | None = None
    ) -> str:
        """The text that generate would write for the ids."""
        request = codec.detokenize_request(token_ids, skip_special_tokens)
        return self._connection.call(self._stub.Detokenize, request, timeout).text

    def models(self, *, timeout: float | None = None) -> tuple[ModelCard, ...]:
        """The models served."""
        response = self._connection.call(self._stub.ListModels, pb.ListModelsRequest(), timeout)
        return codec.models_from(response)

    def close(self) -> None:
        """Cancel what is running and leave the server."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
