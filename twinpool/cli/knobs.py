"""Every knob of the configuration tree as a flag, an environment variable and a key of the file.

The dataclasses of `twinpool.config` are the only source: field names, types, defaults and docstrings.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
import typing
from dataclasses import dataclass
from pathlib import Path

from twinpool.config import ConfigError, ServeConfig

PREFIX = "TWINPOOL_"
"""Begins the environment variable of each knob."""

Kind = type[str] | type[int] | type[float] | type[bool] | type[Path]
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_NOUNS: dict[Kind, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    str: "text",
}


@dataclass(frozen=True, slots=True)
class Knob:
    """One field of the tree. section: the field of ServeConfig it lives under, "" for its own."""

    name: str
    section: str
    kind: Kind
    default: object
    help: str

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """As in the environment."""
        return PREFIX + self.name.upper()

    def parse(self, text: str, source: str) -> object:
        """The value that a text means. Raises ConfigError, which names the source."""
        try:
            if self.kind is bool:
                return _truth(text)
            return self.kind(text)
        except ValueError:
            raise ConfigError(f"{source} must be {_NOUNS[self.kind]}, not {text!r}") from None

    def check(self, value: object, source: str) -> object:
        """A value that has a type already. Raises ConfigError if it is the wrong one."""
        if self.kind is Path and isinstance(value, str):
            return Path(value)
        if self.kind is float and type(value) is int:
            return float(value)
        if type(value) is not self.kind:
            raise ConfigError(f"{source} must be {_NOUNS[self.kind]}, not {value!r}")
        return value


@functools.cache
def all_knobs() -> tuple[Knob, ...]:
    """Every knob, in the order of the tree. Names are unique over the whole tree."""
    return tuple(_knobs_of(ServeConfig, section=""))


def _knobs_of(config: type, section: str) -> typing.Iterator[Knob]:
    hints, docs = typing.get_type_hints(config), _attribute_docs(config)
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _knobs_of(typing.cast("type", hint), section=field.name)
        else:
            yield Knob(field.name, section, _kind_of(hint), field.default, docs[field.name])


def _kind_of(hint: object) -> Kind:
    """The type itself, or T of `T | None`."""
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return typing.cast("Kind", hint)


def _attribute_docs(config: type) -> dict[str, str]:
    """Each field's docstring: the string below it, which Python itself throws away."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    body = typing.cast("ast.ClassDef", definition).body
    return {
        field.target.id: doc.value.value
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }


def _truth(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE
