"""Turns chat messages into one prompt text, as transformers does with the model's own template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twinpool.errors import InvalidRequest, UnsupportedModel

Message = Mapping[str, str]


class ChatTemplate:
    """A model's compiled template.

    Templates come with foreign models, so they run in Jinja's sandbox. Environment, filters and globals are
    those of transformers' `apply_chat_template`, on which templates rely.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises UnsupportedModel if the template does not compile."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise UnsupportedModel(f"the model's chat template does not compile: {error}") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt text, ending where the assistant's answer begins.

        Raises InvalidRequest with the template's own words where it refuses the messages.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InvalidRequest("messages", f"the model's chat template refused: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(Extension):
    """{% generation %} marks the assistant's words for training; for prompts it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    # Templates print the user's date, so local time it is.
    return datetime.now().strftime(form)
