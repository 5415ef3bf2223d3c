"""Token velocities: the tokens per second that each stage of one instance can release.

They are measured by raising the offered rate until the output no longer grows (``Saturation``);
where nothing could be measured, the pass-time model tells what they would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.cost.buckets import NUM_BUCKETS, Buckets
from headway.cost.pass_time import ALL_UNITS, PassTime
from headway.errors import Code, HeadwayError, require_between, require_over

MEDIUM_TTFT_SLO = 0.4
"""Seconds for the first token of a medium prompt (TokenScale, table 1)."""
TPOT_SLO = 0.1
"""Seconds between tokens (TokenScale, table 1)."""


class TokenLimits(NamedTuple):
    """Seconds to the first token of a medium prompt, and between tokens."""

    ttft: float = MEDIUM_TTFT_SLO
    tpot: float = TPOT_SLO


class LimitsInForce:
    """The tightest limits: those of the dispatch policy, and promises of classes that came."""

    def __init__(self, limits: TokenLimits) -> None:
        self.now = limits

    def promise(self, ttft: float | None, tpot: float | None) -> None:
        """Take a class's promises, seconds; None promises nothing."""
        least = self.now
        if (ttft or least.ttft) < least.ttft or (tpot or least.tpot) < least.tpot:
            self.now = TokenLimits(
                min(ttft or least.ttft, least.ttft), min(tpot or least.tpot, least.tpot)
            )


@dataclass(frozen=True, slots=True)
class Memory:
    """The limits of one DP unit: KV and chunk in tokens, ``max_batch`` in requests."""

    kv_capacity_tokens: int
    chunk_tokens: int
    max_batch: int
    num_units: int = 1


def prefill_velocity(pass_time: PassTime, memory: Memory) -> float:
    """Return V_P, tokens/s: full chunks one after the other, on every unit."""
    chunk = memory.chunk_tokens
    return memory.num_units * chunk / _seconds(pass_time, memory, chunk, 0, 0, 0)


def decode_velocity(pass_time: PassTime, memory: Memory, num_input: int, num_output: int) -> float:
    """Return V_D of one kind of request: all tokens of *completed* requests, tokens/s.

    At saturation a unit holds as many requests as fit whole, on average half grown; each is
    there for a pass per output token.
    """
    size = num_input + num_output
    batch = min(memory.max_batch, memory.kv_capacity_tokens / size)
    kv_tokens = batch * (num_input + num_output / 2)
    seconds = _seconds(pass_time, memory, 0, 0, batch, kv_tokens)
    return memory.num_units * batch * size / (num_output * seconds)


def _seconds(pass_time: PassTime, memory: Memory, *share: float) -> float:
    """Return the seconds of a pass in which every unit has this share."""
    num_shares = memory.num_units if pass_time.gate == ALL_UNITS else 1
    return pass_time.seconds(*(num_shares * term for term in share))


def decode_velocities(pass_time: PassTime, memory: Memory, buckets: Buckets) -> tuple[float, ...]:
    """Return V_D of the nine buckets."""
    pairs = (buckets.lengths(index) for index in range(NUM_BUCKETS))
    return tuple(decode_velocity(pass_time, memory, *pair) for pair in pairs)


# --- the convertible decoder (TokenScale, section IV-D) ---------------------------------


def convertible_velocity(chunk_tokens: float, decode_batch: float, tpot_slo: float) -> float:
    """Return ``V_conv = (chunk − decode batch) / TPOT_SLO``, tokens/s, at least 0 (equation 5)."""
    require_over("tpot_slo", tpot_slo, 0)
    return max(0.0, chunk_tokens - decode_batch) / tpot_slo


def reserved_tokens(velocity: float, ttft_slo: float) -> float:
    """Return the tokens of KV kept for prompts: ``V_conv × TTFT_SLO`` (equation 6, over bytes)."""
    require_between("velocity", velocity, 0, float("inf"))
    require_over("ttft_slo", ttft_slo, 0)
    return velocity * ttft_slo


def memory_for_prompts(
    chunk_tokens: float, decode_batch: float, kv_capacity_tokens: float, limits: TokenLimits
) -> float:
    """Return what a convertible decoder keeps for prompts under these limits, tokens of KV.

    At most half of its KV: it decodes as well.
    """
    velocity = convertible_velocity(chunk_tokens, decode_batch, limits.tpot)
    return min(reserved_tokens(velocity, limits.ttft), kv_capacity_tokens / 2)


def takes_decode(kv_tokens: int, kv_capacity_tokens: int, reserved_tokens: float) -> bool:
    """Return whether new decode work leaves a convertible decoder's reserved memory M free."""
    return reserved_tokens <= 0 or kv_tokens <= kv_capacity_tokens - reserved_tokens


# --- measuring --------------------------------------------------------------------------


class Saturation:
    """A search for the greatest output rate: what to offer next, and the ``best`` so far.

    ``offered`` begins at ``first`` and grows by ``factor`` until the output has grown by less than
    ``tolerance`` of itself ``patience`` times in a row; None once that is so. What is offered may
    be a rate (tokens/s) or requests at a time, which is a rate times their stay (Little's law).
    """

    def __init__(
        self,
        first: float,
        *,
        factor: float = 1.25,
        tolerance: float = 0.02,
        patience: int = 1,
        max_steps: int = 64,
    ) -> None:
        require_over("first_rate", first, 0)
        require_over("factor", factor, 1)
        require_between("tolerance", tolerance, 0, factor - 1)
        require_between("patience", patience, 1, max_steps)
        self.offered: float | None = first
        self.best = 0.0
        self._factor, self._tolerance = factor, tolerance
        self._patience, self._num_flat = patience, 0
        self._num_left = max_steps

    def add(self, output: float) -> None:
        """Take in the output rate (tokens/s) at what was offered.

        HeadwayError if it still grows after ``max_steps``.
        """
        assert self.offered is not None, "nothing more is to be measured"
        has_grown = not self.best or output >= self.best * (1 + self._tolerance)
        self._num_flat = 0 if has_grown else self._num_flat + 1
        self.best = max(self.best, output)
        if self._num_flat == self._patience:
            self.offered = None
            return
        if not self._num_left:
            message = (
                f"the output still grows at {self.offered:.0f} offered; "
                "begin with a higher first_rate"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="first_rate")
        self._num_left -= 1
        self.offered *= self._factor
