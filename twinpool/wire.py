"""Copies frozen dataclasses into protobuf messages and back, field by field of the same name.

| in the dataclass | on the wire |
|---|---|
| `int`, `float`, `str`, `bool` | the scalar |
| a `NewType` of one of these, or either of two | the same |
| a `StrEnum`, say `PrefillOutcome.DONE` | the enum of that name, `PREFILL_OUTCOME_DONE` |
| a dataclass | a message; an absent one reads as one whose fields are all absent |
| a tuple of one of these | `repeated` |
| `... or None` | `optional`; for an enum, its zero; for a message, its absence |

An absent `optional` scalar that may not be None reads as the field's default: the other side may not know it
yet. Without a default it has to be there.

How a class is copied is worked out once, in `Codec(...)`, and what does not fit is a TypeError there.
Copying looks at no type any more: a worker says one message for each step of its engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

Member = TypeVar("Member", bound=StrEnum)
Number = TypeVar("Number", bound=int)
Value = TypeVar("Value")
Wire = TypeVar("Wire", bound=Message)
Convert = Callable[[Any], Any]

_SCALARS: Mapping[type, frozenset[int]] = MappingProxyType(
    {
        bool: frozenset({FieldDescriptor.TYPE_BOOL}),
        float: frozenset({FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}),
        int: frozenset(
            {
                FieldDescriptor.TYPE_INT32,
                FieldDescriptor.TYPE_INT64,
                FieldDescriptor.TYPE_UINT32,
                FieldDescriptor.TYPE_UINT64,
            }
        ),
        str: frozenset({FieldDescriptor.TYPE_STRING}),
    }
)


class UnknownMessage(ValueError):
    """The other side said something this version does not know."""


def numbers(
    kind: type[Member], wire: _EnumTypeWrapper[Number], *, zero: Member | None = None
) -> Mapping[Member, Number]:
    """The number of each member, by name after the prefix that the zero's name shows.

    zero: the member that the wire's zero means; None: the zero means none of them. Raises TypeError where
    either side has a name that the other lacks.
    """
    return cast("Mapping[Member, Number]", MappingProxyType(_numbers(kind, wire.DESCRIPTOR, zero)))


class Codec(Generic[Value, Wire]):
    """Between one dataclass and one message, whose fields have the same names."""

    def __init__(self, kind: type[Value], wire: type[Wire]) -> None:
        self._kind, self._wire = kind, wire
        places: Mapping[str, Any] = wire.DESCRIPTOR.fields_by_name
        hints = get_type_hints(kind)
        members = fields(kind)  # type: ignore[arg-type]
        names = [each.name for each in members]
        if set(names) != set(places):
            raise TypeError(
                f"{kind.__name__} and {wire.DESCRIPTOR.name} differ in {set(names) ^ set(places)}"
            )
        copies = [_copy(hints[name], places[name]) for name in names]
        self._names = names
        self._get = attrgetter(*names) if len(names) > 1 else lambda each: (getattr(each, names[0]),)
        self._encoders = [(names[place], copy.encode) for place, copy in enumerate(copies) if copy.encode]
        self._decoders = [(place, copy.decode) for place, copy in enumerate(copies) if copy.decode]
        self._optional = [
            (place, each.name, None if copies[place].is_optional else each.default)
            for place, each in enumerate(members)
            if copies[place].has_presence
        ]

    def encode(self, value: Value) -> Wire:
        """For the wire. Raises TypeError or ValueError where a value does not fit its field."""
        return self._wire(**self.fields(value))

    def fields(self, value: Value) -> dict[str, Any]:
        """The arguments that make the message. Inner messages are arguments, too: that is quicker."""
        values = dict(zip(self._names, self._get(value)))  # noqa: B905 (this is what all time goes into)
        for name, encode in self._encoders:
            values[name] = encode(values[name])
        return values

    def decode(self, message: Wire) -> Value:
        """Off the wire. Raises UnknownMessage for an enum's number that has no name here."""
        values = list(self._get(message))
        for place, name, absent in self._optional:
            if not message.HasField(name):
                if absent is MISSING:
                    raise UnknownMessage(f"{self._kind.__name__} without {name}")
                values[place] = absent
        for place, decode in self._decoders:
            values[place] = decode(values[place])
        return self._kind(*values)


@dataclass(frozen=True, slots=True)
class _Copy:
    """How one field is copied; None: as it is. has_presence: its message is asked whether it is there."""

    encode: Convert | None = None
    decode: Convert | None = None
    has_presence: bool = False
    is_optional: bool = False


def _copy(hint: Any, place: FieldDescriptor) -> _Copy:
    kind, optional = _without_none(hint)
    repeated = get_origin(kind) is tuple
    if repeated is not place.is_repeated or (repeated and optional):
        raise TypeError(f"{place.full_name} does not hold {hint}")
    if repeated:
        return _repeated(_copy_one(_plain(get_args(kind)[0]), place, optional=False))
    return _copy_one(kind, place, optional)


def _copy_one(kind: Any, place: FieldDescriptor, optional: bool) -> _Copy:
    if place.message_type is not None and isinstance(kind, type) and is_dataclass(kind):
        codec = Codec(kind, GetMessageClass(place.message_type))
        if optional:
            return _Copy(_unless_none(codec.fields), _unless_none(codec.decode), True, True)
        return _Copy(codec.fields, codec.decode)
    if place.enum_type is not None and issubclass(kind, StrEnum) and not place.has_presence:
        return _enum(kind, place.enum_type, optional)
    if place.type not in _SCALARS.get(kind, ()) or (optional and not place.has_presence):
        raise TypeError(f"{place.full_name} does not hold {kind}")
    return _Copy(has_presence=place.has_presence, is_optional=optional)


def _enum(kind: type[StrEnum], wire: EnumDescriptor, optional: bool) -> _Copy:
    """By name; the zero itself is None, or else never said."""
    encode: dict[StrEnum | None, int] = dict(_numbers(kind, wire, None).items())
    if optional:
        encode[None] = 0
    known = _Known((number, each) for each, number in encode.items())
    known.name = wire.name
    return _Copy(encode.__getitem__, known.__getitem__)


def _numbers(kind: type[Member], wire: EnumDescriptor, zero: Member | None) -> dict[Member, int]:
    unspecified = wire.values_by_number[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    names = {each: unspecified if each is zero else prefix + each.name for each in kind}
    if kind.__name__ != wire.name or {unspecified, *names.values()} != set(wire.values_by_name):
        raise TypeError(f"{kind.__name__} and {wire.full_name} differ")
    return {each: wire.values_by_name[name].number for each, name in names.items()}


class _Known(dict[int, StrEnum | None]):
    """An enum's values by number."""

    name = ""

    def __missing__(self, number: int) -> NoReturn:
        raise UnknownMessage(f"unknown {self.name} {number}")


def _repeated(one: _Copy) -> _Copy:
    encode, decode = one.encode, one.decode
    return _Copy(
        encode and (lambda values: [encode(each) for each in values]),
        (lambda values: tuple([decode(each) for each in values])) if decode else tuple,
    )


def _unless_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return _plain(hint), False
    (kind,) = {_plain(each) for each in get_args(hint) if each is not NoneType}
    return kind, NoneType in get_args(hint)


def _plain(kind: Any) -> Any:
    """What a NewType is when the program runs."""
    return getattr(kind, "__supertype__", kind)
