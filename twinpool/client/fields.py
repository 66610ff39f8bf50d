"""Callers' values into message fields; what no field can carry is refused here, in words about the value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Protocol, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from twinpool.errors import InvalidRequest

T = TypeVar("T")

_SHOWN_CHARACTERS = 80
_CARRIES = {
    FieldDescriptor.TYPE_STRING: "Unicode text",
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_INT32: "an integer of 32 bits",
    FieldDescriptor.TYPE_INT64: "an integer of 64 bits",
    FieldDescriptor.TYPE_UINT32: "an integer from 0 to 2^32 - 1",
    FieldDescriptor.TYPE_UINT64: "an integer from 0 to 2^64 - 1",
}


class _Extendable(Protocol):
    def extend(self, values: Iterable[int], /) -> None: ...


def set_field(message: Message, name: str, value: object, prefix: str = "") -> None:
    """None leaves the field absent. prefix: the message's own path. Raises InvalidRequest."""
    if value is None:
        return
    kind = message.DESCRIPTOR.fields_by_name[name].type
    with refusal(prefix + name, _CARRIES[kind], value):
        # protobuf would take bytes for text, where they happen to be UTF-8.
        setattr(message, name, text_of(value) if kind == FieldDescriptor.TYPE_STRING else value)


def extend_ids(ids: _Extendable, values: Iterable[int], path: str) -> None:
    """Token ids, in order. Raises InvalidRequest for what is none: bytes are text not yet decoded."""
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping | Set):
        raise InvalidRequest(path, f"{path} must be a list of integers, not {shown(values)}")
    with refusal(path, "a list of integers of 32 bits", values):
        ids.extend(values)


def several(values: Iterable[T], path: str, carries: str) -> Iterable[T]:
    """The values, if they are a list or the like. Raises InvalidRequest."""
    given: object = values
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest(path, f"{path} must be {carries}, not {shown(given)}")
    return values


def text_of(value: object) -> str:
    """The text, if it is one. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError
    return value


def shown(value: object) -> str:
    """A value as errors show it: its type and how it begins."""
    words = repr(value)
    cut = words if len(words) <= _SHOWN_CHARACTERS else words[:_SHOWN_CHARACTERS] + "…"
    return f"{type(value).__name__} {cut}"


@contextmanager
def refusal(path: str, carries: str, value: object) -> Iterator[None]:
    """What protobuf refuses inside is an invalid request, at this path."""
    try:
        yield
    except (TypeError, ValueError):
        raise InvalidRequest(path, f"{path} must be {carries}, not {shown(value)}") from None
