"""One codec for every message: dataclass fields to protobuf fields, by name and type.

A plan for each pair of types is made once, from the protobuf descriptor. Nested messages and enums
become the dataclass and the ``Enum`` of the same name. A ``StreamKey`` called ``key`` is flat on
the wire: ``gateway_id`` and ``stream_id``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import cache
from operator import attrgetter
from types import MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from headway import cluster, messages, picture, request, service_class
from headway.errors import invalid
from headway.policies.scaling import protocol as scaling
from services.runtime.wire.checks import (
    BY_FIELD,
    BY_NAME,
    MAX_ENTRIES,
    OF_THE_WHOLE,
    SELF_CHECKED,
    Check,
    an_id,
    finite,
    key,
    known,
    most_of,
    require_at_most,
)
from services.runtime.wire.status import code_of, status_of_code

M = TypeVar("M")
_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Codec(Generic[M]):
    """A converter between a dataclass and its protobuf message."""

    pack: Callable[[M], Any]
    unpack: Callable[[Any], M]


class Union(Generic[M]):
    """Messages that share a stream: the ``body`` of a protobuf message is one of them.

    Members are identified by the names of their types. ``by_hand`` has codecs for members that the
    generic one does not fit. A body ``batch`` holds several messages, in order.
    """

    def __init__(
        self, packed_type: Any, by_hand: Mapping[str, Codec[Any]] = MappingProxyType({})
    ) -> None:
        self._packed_type = packed_type
        self._unpack: dict[str, _Convert] = {}
        self._pack: dict[type, tuple[str, _Convert]] = {}
        for field in packed_type.DESCRIPTOR.oneofs_by_name["body"].fields:
            if field.name == "batch":
                self._batch_type = GetMessageClass(field.message_type)
                continue
            member, codec = _member(field, by_hand)
            self._unpack[field.name] = codec.unpack
            self._pack[member] = (field.name, codec.pack)

    def pack(self, message: M) -> Any:
        """Return the protobuf message with ``message`` as its body."""
        name, pack = self._pack[type(message)]
        return self._packed_type(**{name: pack(message)})

    def unpack(self, packed: Any) -> M:
        """Return the body, checked; refuse one without a body."""
        body = packed.WhichOneof("body")
        unpack = self._unpack.get(body)
        if unpack is None:
            *names, last = self._unpack
            raise invalid("body", body, f"{', '.join(names)} or {last}")
        message: M = unpack(getattr(packed, body))
        return message

    def pack_all(self, all_messages: Sequence[M]) -> Any:
        """Return one protobuf message with all messages (at least one), in order."""
        if len(all_messages) == 1:
            return self.pack(all_messages[0])
        batch = self._batch_type(messages=[self.pack(message) for message in all_messages])
        return self._packed_type(batch=batch)

    def unpack_all(self, packed: Any) -> list[M]:
        """Return the message, or those of the batch, checked; refuse a batch in a batch."""
        if packed.WhichOneof("body") == "batch":
            require_at_most(packed.batch.messages, MAX_ENTRIES, "messages")
            return [self.unpack(message) for message in packed.batch.messages]
        return [self.unpack(packed)]


def _member(field: FieldDescriptor, by_hand: Mapping[str, Codec[Any]]) -> tuple[type, Codec[Any]]:
    if field.message_type is None:
        return bytes, Codec(lambda value: value, lambda value: value)
    name = field.message_type.name
    return _TYPES[name], by_hand[name] if name in by_hand else _nested(field.message_type)


@cache
def codec_of(kind: type[M], packed_type: Any) -> Codec[M]:
    """Return the codec of a dataclass and a protobuf message; KeyError for a missing field."""
    descriptor = packed_type.DESCRIPTOR
    plan = [_plan(kind, field, descriptor) for field in fields(kind)]  # type: ignore[arg-type]
    return Codec(_packer(packed_type, plan), _unpacker(kind, plan))


# --- plans of fields ------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """The packing and unpacking of one dataclass field."""

    names: tuple[str, ...]  # on the wire
    paths: tuple[str, ...]  # in the dataclass
    pack: _Convert | None = None
    unpack: _Convert | None = None  # of the value
    check: Check | None = None
    read: _Convert | None = None  # of the whole message, instead of the value


def _plan(kind: type, field: Field[Any], descriptor: Descriptor) -> _Plan:
    if field.name == "key":
        names = ("gateway_id", "stream_id")
        paths = ("key.gateway_id", "key.stream_id")
        return _Plan(names, paths, read=lambda packed: key(packed.gateway_id, packed.stream_id))
    packed = descriptor.fields_by_name[field.name]
    plan = _Plan((field.name,), (field.name,))
    plan.check = _check_of(kind, packed)
    if packed.message_type is not None:
        inner = _nested(packed.message_type)
        plan.pack, plan.unpack = inner.pack, inner.unpack
    elif packed.enum_type is not None:
        _plan_enum(plan, packed.enum_type)
    elif (kind, field.name) in _CONVERTED:
        plan.pack, plan.unpack = _CONVERTED[kind, field.name]
    if packed.is_repeated:
        convert = plan.unpack
        plan.pack = _many(plan.pack, list) if plan.pack else None
        plan.unpack = _many(convert, tuple, most_of(kind, field.name)) if convert else tuple
    elif packed.has_presence and field.default is not MISSING:
        _plan_absence(plan, field)
    return plan


def _many(
    convert: _Convert, sequence: Callable[[Any], Any], require: _Convert | None = None
) -> _Convert:
    """Return what converts each; ``require`` looks at all of them before."""

    def convert_all(values: Any) -> Any:
        if require is not None:
            require(values)
        return sequence([convert(value) for value in values])

    return convert_all


def _plan_enum(plan: _Plan, descriptor: EnumDescriptor) -> None:
    """Name the members ``ROLE_DECODE`` on the wire and ``Role.DECODE`` here."""
    kind: type[Enum] = _TYPES[descriptor.name]
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", descriptor.name).upper() + "_"
    numbers = {member: descriptor.values_by_name[prefix + member.name].number for member in kind}
    members = {number: member for member, number in numbers.items()}
    name = plan.names[0]
    plan.pack = numbers.__getitem__
    plan.unpack = lambda number: known(members, number, name)


def _plan_absence(plan: _Plan, field: Field[Any]) -> None:
    """Read the dataclass's default where the message lacks the field, and write none for None."""
    name, default, pack, unpack = field.name, field.default, plan.pack, plan.unpack
    check = plan.check
    if pack is not None:
        plan.pack = lambda value: None if value is None else pack(value)
    if check is not None:
        plan.check = lambda value, name: None if value is None else check(value, name)

    def read(packed: Any) -> Any:
        if not packed.HasField(name):
            return default
        value = getattr(packed, name)
        return value if unpack is None else unpack(value)

    plan.read = read


def _check_of(kind: type, packed: FieldDescriptor) -> Check | None:
    own = BY_FIELD.get(kind, {}).get(packed.name, BY_NAME.get(packed.name))
    if own is not None or packed.is_repeated:
        return own
    match packed.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return an_id if packed.type == FieldDescriptor.TYPE_STRING else None
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return None if kind in SELF_CHECKED else finite
    return None


# --- whole messages -------------------------------------------------------------------


def _packer(packed_type: Any, plan: Sequence[_Plan]) -> _Convert:
    names = [name for each in plan for name in each.names]
    get = _values_of([path for each in plan for path in each.paths])
    converts = [(each.names[0], each.pack) for each in plan if each.pack is not None]

    def pack(message: Any) -> Any:
        values = dict(zip(names, get(message), strict=True))
        for name, convert in converts:
            values[name] = convert(values[name])
        return packed_type(**values)

    return pack


def _unpacker(kind: type, plan: Sequence[_Plan]) -> _Convert:
    names = [each.names[-1] for each in plan]
    get = _values_of(names)
    reads = [(place, each.read) for place, each in enumerate(plan) if each.read]
    converts = [
        (place, each.unpack)
        for place, each in enumerate(plan)
        if each.unpack is not None and each.read is None
    ]
    checks = [(place, each.check, names[place]) for place, each in enumerate(plan) if each.check]
    check_whole = OF_THE_WHOLE.get(kind)

    def unpack(packed: Any) -> Any:
        values = list(get(packed))
        for place, read in reads:
            values[place] = read(packed)
        for place, convert in converts:
            values[place] = convert(values[place])
        for place, check, name in checks:
            values[place] = check(values[place], name)
        message = kind(*values)
        if check_whole is not None:
            check_whole(message)
        return message

    return unpack


def _values_of(paths: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Return an ``attrgetter`` that gives a sequence for any number of paths."""
    if len(paths) > 1:
        return attrgetter(*paths)
    return lambda message: [getattr(message, path) for path in paths]


# --- enums and absent fields ----------------------------------------------------------


def _nested(descriptor: Descriptor) -> Codec[Any]:
    packed_type: Any = GetMessageClass(descriptor)
    if descriptor.name == "StreamRef":
        return Codec(
            lambda each: packed_type(gateway_id=each.gateway_id, stream_id=each.stream_id),
            lambda packed: key(packed.gateway_id, packed.stream_id),
        )
    return codec_of(_TYPES[descriptor.name], packed_type)


def _types_in(module: ModuleType) -> Iterator[tuple[str, type]]:
    return ((name, each) for name, each in vars(module).items() if isinstance(each, type))


_TYPES: Mapping[str, type] = {
    name: kind
    for module in (scaling, cluster, service_class, request, messages, picture)
    for name, kind in _types_in(module)
}
_CONVERTED: Mapping[tuple[type, str], tuple[_Convert, _Convert]] = {
    (messages.Rejected, "code"): (status_of_code, code_of)
}
