"""Ids of streams that nobody can guess: whoever knows one may bring its tokens."""

from __future__ import annotations

import hashlib


class StreamIds:
    """A sequence of 64-bit ids, drawn from a secret key by a keyed hash.

    The same key gives the same ids, so that a recording of the core can be replayed.
    """

    def __init__(self, key: bytes) -> None:
        """``key``: at most 64 random bytes, a fresh one for each process."""
        self._key = key
        self._num_drawn = 0

    def __call__(self) -> int:
        """Draw the next id."""
        self._num_drawn += 1
        digest = hashlib.blake2b(
            self._num_drawn.to_bytes(8, "big"), key=self._key, digest_size=8
        ).digest()
        return int.from_bytes(digest, "big")
