"""`twinpool generate` and `twinpool chat`: one prompt to a running server, its answer to the terminal."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter

from twinpool.client import Chunk, Client, Completion, Options
from twinpool.client.blocking import DEFAULT_TARGET


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PromptFlags:
    """What generate and chat have in common."""

    max_tokens: int | None = None
    """Most tokens to produce; by default whatever still fits."""
    temperature: float | None = None
    """0 takes the most likely token."""
    top_k: int | None = None
    """Keep only this many of the most likely tokens; 0 keeps all."""
    top_p: float | None = None
    """Keep the smallest set of most likely tokens whose probability reaches this."""
    seed: int | None = None
    """The same seed gives the same tokens."""
    ignore_eos: Annotated[bool, Parameter(negative=())] = False
    """Go on past the model's end-of-sequence token."""
    target: str = DEFAULT_TARGET
    """The server, as HOST:PORT."""
    timeout: float | None = None
    """Seconds the whole answer may take."""
    json: Annotated[bool, Parameter(negative=())] = False
    """Print one JSON object with text, token ids, usage, timing and workers instead of streaming."""

    @property
    def options(self) -> Options:
        """As the client takes them."""
        return Options(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )


DEFAULT_FLAGS = PromptFlags()


def generate(prompt: str, *, flags: PromptFlags = DEFAULT_FLAGS) -> None:
    """Continue a prompt, streaming the text as it comes. Ctrl-C cancels the request.

    Parameters
    ----------
    prompt
        The text to continue.
    """
    with Client(flags.target) as client:
        if flags.json:
            _print_json(client.complete(prompt, timeout=flags.timeout, **flags.options))
            return
        with client.generate(prompt, timeout=flags.timeout, **flags.options) as chunks:
            _print_text(chunks)


def chat(message: str, *, system: str | None = None, flags: PromptFlags = DEFAULT_FLAGS) -> None:
    """Answer one message through the model's chat template. Ctrl-C cancels the request.

    Parameters
    ----------
    message
        What the user says.
    system
        Instructions that come before it.
    """
    instructions = [] if system is None else [{"role": "system", "content": system}]
    messages = [*instructions, {"role": "user", "content": message}]
    with Client(flags.target) as client:
        if flags.json:
            _print_json(client.complete_chat(messages, timeout=flags.timeout, **flags.options))
            return
        with client.chat(messages, timeout=flags.timeout, **flags.options) as chunks:
            _print_text(chunks)


def _print_text(chunks: Iterable[Chunk]) -> None:
    has_text = False
    try:
        for chunk in chunks:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            has_text = True
    finally:
        # However it ends, what the terminal shows next begins on a line of its own.
        if has_text:
            sys.stdout.write("\n")
            sys.stdout.flush()


def _print_json(completion: Completion) -> None:
    print(json_format.dumps(asdict(completion)))
