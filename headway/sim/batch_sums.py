"""A DP unit's part of a decode batch on a clock: sums over its requests, a step at a time."""

from __future__ import annotations

from headway.blocks import BlockPool, blocks_for
from headway.cost.pass_time import Share


class BatchSums:
    """Requests that each compute one token a step.

    ``_fill`` counts them by the tokens in their last block at step 0, so that the blocks needed
    some steps later follow without a look at each request. ``step``: of the batch's clock.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._size = pool.block_size
        self._fill = [0] * pool.block_size
        self._num_blocks = 0  # for the KV so far
        self._num_held = 0  # in the requests' own tables
        self.num_requests = 0
        self.kv_tokens = 0

    def add(self, num_computed: int, num_held: int, step: int) -> None:
        """Add a request with so many tokens of KV, and blocks in its table."""
        self._count(num_computed, step, 1)
        self._num_held += num_held

    def remove(self, num_computed: int, num_held: int, step: int) -> None:
        """Remove a request with so many tokens of KV, and blocks in its table."""
        self._count(num_computed, step, -1)
        self._num_held -= num_held

    def _count(self, num_computed: int, step: int, sign: int) -> None:
        self.num_requests += sign
        self.kv_tokens += sign * num_computed
        self._num_blocks += sign * blocks_for(num_computed, self._size)
        self._fill[(num_computed - step) % self._size] += sign

    def granted(self, num_blocks: int) -> None:
        """Note that so many more blocks are in the requests' own tables."""
        self._num_held += num_blocks

    def advance(self, step: int, num_steps: int) -> None:
        """Let each request compute so many tokens."""
        self._num_blocks += self._growth(step, num_steps)
        self.kv_tokens += num_steps * self.num_requests

    def work(self) -> Share:
        """Return the unit's work in the next step."""
        return Share(0, 0, self.num_requests, self.kv_tokens + self.num_requests)

    # --- blocks -----------------------------------------------------------------------

    def missing(self, step: int, num_steps: int) -> int:
        """Return the blocks that the requests need then beyond those in their tables."""
        return self._num_blocks + self._growth(step, num_steps) - self._num_held

    def promise(self, step: int, num_steps: int) -> None:
        """Set these blocks aside in the pool."""
        self._pool.promise(self.missing(step, num_steps))

    def steps_within(self, step: int, most: int) -> int:
        """Return the most steps whose blocks are free, at most ``most``, by bisection."""
        self._pool.promise(0)
        room = self._pool.num_free
        if self.missing(step, most) <= room:
            return most
        low, high = 0, most  # ``low`` steps fit, ``high`` do not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.missing(step, middle) <= room else (low, middle)
        return low

    def _growth(self, step: int, num_steps: int) -> int:
        size = self._size
        num_full, rest = divmod(num_steps, size)
        growth = num_full * self.num_requests
        for last in range(size - rest + 1, size + 1):  # tokens in its last block now
            growth += self._fill[(last - step) % size]
        return growth
