"""`twinpool generate` and `twinpool chat`: one prompt to a running server, its answer to the terminal."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated

from cyclopts import Parameter

from twinpool.client import Chunk, Client, Completion
from twinpool.client.blocking import DEFAULT_TARGET
from twinpool.sampling.params import SamplingOptions


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PromptFlags:
    """What generate and chat have in common."""

    sampling: Annotated[SamplingOptions, Parameter(name="*", negative_bool=())] = field(
        default_factory=SamplingOptions
    )
    target: str = DEFAULT_TARGET
    """The server, as HOST:PORT."""
    timeout: float | None = None
    """Seconds the whole answer may take."""
    json: Annotated[bool, Parameter(negative=())] = False
    """Print one JSON object with text, token ids, usage, timing and workers instead of streaming."""


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
            _print_json(client.complete(prompt, timeout=flags.timeout, **flags.sampling))
            return
        with client.generate(prompt, timeout=flags.timeout, **flags.sampling) as chunks:
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
            _print_json(client.complete_chat(messages, timeout=flags.timeout, **flags.sampling))
            return
        with client.chat(messages, timeout=flags.timeout, **flags.sampling) as chunks:
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
