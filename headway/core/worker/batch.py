"""A decode batch that goes on from pass to pass without a plan; live passes have none.

``headway/sim/decode_clock.py`` is one: its requests are looked at only when something concerns
them.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol

from headway.core.worker.sequence import Sequence
from headway.cost.pass_time import Share
from headway.policies.batching.queue import Entry
from headway.request import StreamKey


class UnitSums(Protocol):
    """A DP unit's part of the batch."""

    @property
    def num_requests(self) -> int:
        """Its requests."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of their KV."""


class ClockedBatch(Protocol):
    """The batch of one worker."""

    def __contains__(self, key: StreamKey) -> bool:
        """Return whether a request is in it."""

    def sync(self) -> None:
        """Look at every request, as of the end of the last pass."""

    def synced(self, unit: int) -> Many[Entry[Sequence]]:
        """Return the requests of a unit that the end of the last pass concerned."""

    def growth(self, unit: int) -> int:
        """Return the blocks that a unit's requests need for their next step."""

    def works(self) -> list[Share]:
        """Return what each DP unit with requests has in the next step."""

    def cut(self, num_steps: int) -> None:
        """Set aside the blocks of so many steps of the pass in flight, and no others."""
