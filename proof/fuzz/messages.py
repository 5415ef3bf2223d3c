"""Protobuf messages with whatever a peer could put into them, and their bytes, damaged."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_IDS = ("", "g", "w", "w2", "r0", "r1", "m", "x" * 300, "a|b", "\x00", "ü🙂")
_WHOLE = (0, 1, 2, 3, 5, 16, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31))
_REAL = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 7.0)
_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_DEEPEST = 4
_KEPT = 0.8  # of the fields of a message


def fill(message: Message, rng: random.Random, depth: int = 0, *, hostile: float = 0.2) -> Any:
    """Give the fields values: ordinary ones, and with the chance ``hostile`` extreme ones."""
    descriptor: Any = message.DESCRIPTOR
    one_of_each = {group.name: rng.choice(group.fields).name for group in descriptor.oneofs}
    for field in descriptor.fields:
        group = field.containing_oneof
        if group is not None and one_of_each[group.name] != field.name:
            continue
        if (group is None and rng.random() > _KEPT) or depth > _DEEPEST:
            continue
        _fill_field(message, field, rng, depth, hostile)
    return message


def _fill_field(message: Any, field: Any, rng: random.Random, depth: int, hostile: float) -> None:
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    if is_message and field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        values = getattr(message, field.name)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            if is_message:
                fill(values.add(), rng, depth + 1, hostile=hostile)
            else:
                values.append(_scalar(field, rng, hostile))
    elif is_message:
        getattr(message, field.name).SetInParent()
        fill(getattr(message, field.name), rng, depth + 1, hostile=hostile)
    else:
        setattr(message, field.name, _scalar(field, rng, hostile))


def _scalar(field: Any, rng: random.Random, hostile: float) -> Any:
    is_hostile = rng.random() < hostile
    kind = field.cpp_type
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 8, 64)))
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(_IDS if is_hostile else _IDS[1:7])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        numbers = [value.number for value in field.enum_type.values]
        return rng.choice((*numbers, 99) if is_hostile else numbers[1:] or numbers)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(_REAL) if is_hostile else rng.random() * 10
    low, high = _LIMITS[kind]
    number = rng.choice(_WHOLE) if is_hostile else rng.randint(0, 4)
    return min(max(number, low), high)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip bits, cut, double or insert, a few times; often not at all."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 2, 6))):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place : place + rng.randint(1, 8)]
            case 2:
                changed[place:place] = changed[place : place + rng.randint(1, 16)]
            case 3:
                changed[place:place] = rng.randbytes(rng.randint(1, 4))
            case _:
                del changed[place:]
    return bytes(changed)
