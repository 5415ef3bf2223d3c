"""The one uniform number of a draw."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """In [0, 1): entry ``position`` of the stream ``seed``, both mixed by SplitMix64."""
    return (_mix(_mix(seed + _GOLDEN) + (position + 1) * _GOLDEN) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
