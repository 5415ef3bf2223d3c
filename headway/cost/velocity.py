"""Token velocities: the tokens per second that each stage of one instance can release.

The pass-time model says what they are; a velocity that a paper gives stands over it in a profile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.cost.buckets import NUM_BUCKETS, Buckets
from headway.cost.pass_time import ALL_UNITS, PassTime
from headway.errors import require_between, require_over

MEDIUM_TTFT_SLO = 0.4
"""Seconds for the first token of a medium prompt (TokenScale, table 1)."""
TPOT_SLO = 0.1
"""Seconds between tokens (TokenScale, table 1)."""
LEAST_PROMPT = 16
"""Tokens of prompts below which a convertible decoder converts nothing."""


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

    def batch_of(self, size: int) -> float:
        """Return how many requests of ``size`` tokens decode together: those that fit whole."""
        return min(self.max_batch, self.kv_capacity_tokens / size)


def prefill_velocity(pass_time: PassTime, memory: Memory, lengths: Sequence[int] = ()) -> float:
    """Return V_P, tokens/s, of prompts of these lengths in turn, on every unit; of one full chunk.

    Each prompt takes passes of its own.
    """
    chunk, lengths = memory.chunk_tokens, lengths or (memory.chunk_tokens,)
    pieces = [(min(chunk, n - start), start) for n in lengths for start in range(0, n, chunk)]
    seconds = sum(_seconds(pass_time, memory, n, n * start, 0, 0) for n, start in pieces)
    return memory.num_units * sum(lengths) / seconds


def decode_velocity(pass_time: PassTime, memory: Memory, num_input: int, num_output: int) -> float:
    """Return V_D of one kind of request: all tokens of *completed* requests, tokens/s.

    At saturation a unit holds as many requests as fit whole, on average half grown; each is
    there for a pass per output token.
    """
    size = num_input + num_output
    batch = memory.batch_of(size)
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


def convertible_chunk(
    pass_time: PassTime, memory: Memory, num_input: int, num_output: int, tpot_slo: float
) -> tuple[int, int] | None:
    """Return the most tokens of a pass within ``tpot_slo`` (s), and how many of them decode.

    So many decode as saturate a unit with such requests, or half of them, and again, until a prompt
    has room beside them; None where it has none beside a single one.
    """
    require_over("tpot_slo", tpot_slo, 0)

    def seconds(num_tokens: int) -> float:
        context = num_tokens * max(0, num_tokens - memory.chunk_tokens) / 2
        return pass_time.seconds(num_tokens, context, batch, batch * (num_input + num_output / 2))

    batch = int(memory.batch_of(num_input + num_output))
    while batch:
        num_prompt = bisect_right(range(memory.kv_capacity_tokens), tpot_slo, key=seconds) - 1
        if num_prompt >= LEAST_PROMPT:
            return num_prompt + batch, batch
        batch //= 2
    return None


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
