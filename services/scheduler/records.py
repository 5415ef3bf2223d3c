"""Records that a leader saves: one small blob each, fields in a fixed order.

Records of another version are skipped when read, as if those requests had none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import inf
from struct import Struct

from headway.cluster import UnitId
from headway.core.scheduler.events import Learned, SavedRequest
from headway.messages import MAX_GAMMA, MIN_GAMMA
from headway.request import StreamKey

_VERSION = 1
_KEY = Struct("<Q")
# version, flags, cycle, since, moved_at, target unit, bytes of worker_id; the ids follow
_REQUEST = Struct("<BBqddHH")
_LEARNED = Struct("<Bqdddd")
_MOVING, _RELOCATING = 1, 2
_MOST = 2**53  # cycles, and seconds since the epoch


def pack_key(key: StreamKey) -> bytes:
    """Pack the record's name."""
    return _KEY.pack(key.stream_id) + key.gateway_id.encode()


def pack_request(saved: SavedRequest) -> bytes:
    """Pack one live attempt, without its key."""
    target_id, target_unit = saved.target if saved.target is not None else ("", 0)
    flags = (saved.target is not None) * _MOVING | saved.relocating * _RELOCATING
    worker_id = saved.worker_id.encode()
    head = _REQUEST.pack(
        _VERSION,
        flags,
        saved.cycle,
        saved.since,
        saved.moved_at,
        target_unit,
        len(worker_id),
    )
    return head + worker_id + target_id.encode()


def pack_learned(learned: Learned) -> bytes:
    """Pack the measurements of one model, without its name."""
    return _LEARNED.pack(_VERSION, *learned[1:])


def unpack_requests(packed: Mapping[bytes, bytes]) -> tuple[SavedRequest, ...]:
    """Unpack records of this version, ordered by since and key."""
    requests = (_unpack_request(name, blob) for name, blob in packed.items())
    return tuple(sorted((x for x in requests if x is not None), key=lambda x: (x.since, x.key)))


def unpack_learned(packed: Mapping[bytes, bytes]) -> tuple[Learned, ...]:
    """Unpack records of this version, ordered by model."""
    records = (_unpack_learned(name, blob) for name, blob in packed.items())
    return tuple(sorted(x for x in records if x is not None))


def _unpack_request(name: bytes, blob: bytes) -> SavedRequest | None:
    try:
        (stream_id,) = _KEY.unpack_from(name)
        version, flags, cycle, since, moved_at, unit, length = _REQUEST.unpack_from(blob)
        ids = blob[_REQUEST.size :]
        worker_id, target_id = ids[:length].decode(), ids[length:].decode()
        key = StreamKey(name[_KEY.size :].decode(), stream_id)
    except (struct.error, UnicodeDecodeError):
        return None
    target = UnitId(target_id, unit) if flags & _MOVING else None
    is_sane = -1 <= cycle <= _MOST and 0 <= since <= _MOST and -inf <= moved_at <= _MOST
    if version != _VERSION or not is_sane:
        return None
    relocating = bool(flags & _RELOCATING)
    return SavedRequest(key, worker_id, cycle, since, moved_at, target, relocating)


def _unpack_learned(name: bytes, blob: bytes) -> Learned | None:
    try:
        version, *measured = _LEARNED.unpack(blob)
        learned = Learned(name.decode(), *measured)
    except (struct.error, UnicodeDecodeError):
        return None
    is_sane = all(0 <= number <= _MOST for number in measured)
    is_sane = is_sane and (not learned.gamma or MIN_GAMMA <= learned.gamma <= MAX_GAMMA)
    return learned if version == _VERSION and is_sane else None
