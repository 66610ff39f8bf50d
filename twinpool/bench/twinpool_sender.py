"""The way to a Twinpool server: one channel, through the asyncio client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twinpool.bench.prompts import Prompt
from twinpool.bench.records import Answered
from twinpool.client import AsyncClient, Options
from twinpool.errors import InternalError


@dataclass(frozen=True, slots=True)
class TwinpoolSender:
    """options: of every request, but for the number of tokens. The client stays its maker's to close."""

    client: AsyncClient
    options: Options

    async def send(self, prompt: Prompt, saw_tokens: Callable[[], None]) -> Answered:
        """See Sender."""
        options: Options = {**self.options, "max_tokens": prompt.output_tokens}
        summary = None
        async with self.client.generate(prompt.content, **options) as chunks:
            async for chunk in chunks:
                if chunk.token_ids:
                    saw_tokens()
                summary = chunk.summary or summary
        if summary is None:
            raise InternalError("the server ended the stream without saying why")
        return Answered(summary.usage.prompt_tokens, summary.usage.completion_tokens, summary.timing)
