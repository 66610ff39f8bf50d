"""What `twinpool bench serve` sends to: the way there, the model's name, and who tokenizes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from twinpool.bench.load import Sender
from twinpool.bench.prompts import Prompt, ordinary_ids
from twinpool.bench.tokens import TokenizerFile
from twinpool.bench.twinpool_sender import TwinpoolSender
from twinpool.cli.bench_serve_options import ServerOptions, TrafficOptions
from twinpool.client import AsyncClient, Options
from twinpool.config import ConfigError
from twinpool.errors import InternalError


@dataclass(frozen=True, slots=True)
class Target:
    """ids: that random prompts may have. encode: a text's ids, without special tokens; raises ConfigError."""

    sender: Sender
    model: str
    ids: Sequence[int]
    encode: Callable[[str], Awaitable[Sequence[int]]]


@asynccontextmanager
async def opened(server: ServerOptions, traffic: TrafficOptions) -> AsyncIterator[Target]:
    """Until the end of the `with`. Raises TwinpoolError where nobody answers, and ConfigError."""
    tokenizer = None if server.tokenizer is None else TokenizerFile(server.tokenizer)
    way = _to_twinpool if server.backend == "twinpool" else _to_openai
    async with way(server, traffic, tokenizer) as target:
        yield target


@asynccontextmanager
async def _to_twinpool(
    server: ServerOptions, traffic: TrafficOptions, tokenizer: TokenizerFile | None
) -> AsyncIterator[Target]:
    async with AsyncClient(server.target, timeout=server.timeout) as client:
        cards = [card for card in await client.models() if server.model in (None, card.name)]
        if not cards:
            raise ConfigError(f"model: the server does not serve {server.model!r}")
        options: Options = {
            "model": cards[0].name,
            "ignore_eos": traffic.ignore_eos,
            "temperature": traffic.temperature,
            "top_p": traffic.top_p,
            "top_k": traffic.top_k,
        }

        async def encode(text: str) -> Sequence[int]:
            if tokenizer is not None:
                return tokenizer.encode(text)
            return await client.tokenize(text, add_special_tokens=False)

        sender = TwinpoolSender(client, options)
        yield Target(sender, cards[0].name, ordinary_ids(cards[0].vocab_size), encode)


@asynccontextmanager
async def _to_openai(
    server: ServerOptions, traffic: TrafficOptions, tokenizer: TokenizerFile | None
) -> AsyncIterator[Target]:
    try:
        from twinpool.bench import openai_sender  # noqa: PLC0415 (an extra's library)
    except ImportError:
        raise ConfigError(
            f"backend {server.backend} needs an HTTP library: install twinpool[bench]"
        ) from None

    async with openai_sender.http_client(server.url, server.timeout) as client:
        # Asked in any case: nobody there is told of once, and the first request that counts finds all loaded.
        listed = await openai_sender.first_model(client)
        model = server.model or listed
        if model is None:
            raise ConfigError("model must be named: the server lists none")
        asked: dict[str, Any] = {
            "model": model,
            "temperature": traffic.temperature,
            "top_p": traffic.top_p,
            "top_k": traffic.top_k,
            "ignore_eos": traffic.ignore_eos or None,
        }

        async def encode(text: str) -> Sequence[int]:
            if tokenizer is None:
                raise ConfigError(f"dataset-name text over backend {server.backend} needs tokenizer")
            return tokenizer.encode(text)

        def text_of(prompt: Prompt) -> str:
            if tokenizer is not None:
                return tokenizer.text_of(prompt)
            if isinstance(prompt.content, str):
                return prompt.content
            raise InternalError("token ids without a tokenizer")

        body = {name: value for name, value in asked.items() if value is not None}
        is_chat = server.backend == "openai-chat"
        sender = openai_sender.OpenAiSender(client, server.path, body, is_chat, text_of)
        yield Target(sender, model, ordinary_ids(None if tokenizer is None else tokenizer.vocab_size), encode)
