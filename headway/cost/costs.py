"""Costs by which policies decide: seconds of passes, tokens and swaps, and their sources.

They come from a profile, or from what workers measure while they serve. A policy has a default of
its own for a cost that neither knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median_low
from typing import NamedTuple

from headway.bounds import Bounded, at_least, between
from headway.cluster import Role
from headway.cost.pass_time import MOST_SECONDS, PassTime
from headway.cost.schema import Profile

MOST_VELOCITY = 1e12
"""Tokens/s."""
MOST_LINK = 1e15
"""Bytes/s."""


class Source(Enum):
    """The source of a constant."""

    DEFAULT = "default"
    PROMISE = "promise"
    GIVEN = "given"
    PROFILE = "profile"
    MEASURED = "measured"


_OF_PREFILL = (
    "first_pass",
    "prefill_per_token",
    "prefill_base",
    "prefill_slope",
    "prefill_tokens_per_s",
)


class Constant(NamedTuple):
    """A constant that a decision used, from whichever source.

    ``value`` in seconds, γ in 1/s, V_… in tokens/s, the link in bytes/s, ρ a share.
    """

    name: str
    value: float
    source: Source


@dataclass(frozen=True, slots=True)
class Costs(Bounded):
    """Costs of a model's instances, seconds; 0 or None if unknown."""

    first_pass: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds of a pass over half a chunk: T̄ before any report."""
    swap_per_token: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds to host memory and back."""
    per_request: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds of a decode pass (c)."""
    per_kv_token: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds of a decode pass (d)."""
    profile: Profile | None = None
    """Velocities of the instances; of another deployment, if this alone is known."""
    prefill_per_token: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds of an instance's time for a token of a full chunk."""
    prefill_base: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds of a pass beside what its prompt tokens add."""
    prefill_slope: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds that a prompt token of every unit adds to a pass."""
    prefill_tokens_per_s: float = between(0, MOST_VELOCITY, default=0.0)
    """V_P of a prefiller."""
    decode_per_token: float = between(0, MOST_SECONDS, default=0.0)
    """Seconds of an instance's time for a decoded token, in the batches that it has had."""
    network_tokens_per_s: float = between(0, MOST_VELOCITY, default=0.0)
    """V_N of a prefiller."""
    link_bytes_per_s: float = at_least(0, default=0.0)
    """Bytes/s of a worker's link."""
    measured: Collection[str] = ()
    """The fields that were measured while serving; the others are the profile's."""

    @classmethod
    def of(cls, instances: Sequence[tuple[Role, Profile]]) -> Costs:
        """Return the costs of instances with these profiles; the first of a role stands for all."""
        profile = instances[0][1]
        prefillers = [
            each.in_role(role) if role is Role.PREFILL else each
            for role, each in instances
            if role.prefills
        ]
        decode = next((each for role, each in instances if role.decodes), None)
        costs = cls(
            swap_per_token=2 * profile.swap_per_token if profile.host_capacity_tokens else 0.0,
            profile=profile,
            link_bytes_per_s=profile.link_bytes_per_s,
        )
        if prefillers:
            prefill = prefillers[0]
            costs = costs.with_prefill(prefill.pass_time, prefill.chunk_tokens, prefill.num_units)
            velocity = prefill.prefill_tokens_per_s or costs.prefill_tokens_per_s
            network = prefill.network_tokens_per_s or 0.0
            costs = replace(costs, prefill_tokens_per_s=velocity, network_tokens_per_s=network)
        return costs.with_decode(decode.pass_time) if decode is not None else costs

    @classmethod
    def of_passes(
        cls, pass_time: PassTime, chunk_tokens: int, num_units: int, swap_per_token: float
    ) -> Costs:
        """Return the costs of an instance with such passes; coefficients of 0 are unknown."""
        costs = cls(swap_per_token=swap_per_token).with_decode(pass_time)
        if not pass_time.per_prefill_token:
            return costs
        return costs.with_prefill(pass_time, chunk_tokens, num_units)

    def with_prefill(self, pass_time: PassTime, chunk_tokens: int, num_units: int) -> Costs:
        """Return a copy with the prefill costs of these passes, within the bounds of costs."""
        full, num_tokens = pass_time.seconds(chunk_tokens, 0, 0, 0), chunk_tokens * num_units
        return replace(
            self,
            first_pass=min(pass_time.seconds(chunk_tokens / 2, 0, 0, 0), MOST_SECONDS),
            prefill_per_token=min(full / num_tokens, MOST_SECONDS),
            prefill_base=min(pass_time.base, MOST_SECONDS),
            prefill_slope=min(pass_time.per_prefill_token, MOST_SECONDS),
            prefill_tokens_per_s=num_tokens / max(full, num_tokens / MOST_VELOCITY),
        )

    def with_decode(self, pass_time: PassTime) -> Costs:
        """Return a copy with the decode costs of these passes."""
        return replace(self, per_request=pass_time.per_request, per_kv_token=pass_time.per_kv_token)

    @property
    def knows_decode(self) -> bool:
        """True if c and d are known: a 0 beside a known one is a 0."""
        return self.per_request > 0 or self.per_kv_token > 0

    @property
    def measured_network(self) -> float | None:
        """V_N as moves of KV have measured it, tokens/s; None before any."""
        name = "network_tokens_per_s"
        return self.network_tokens_per_s if name in self.measured else None

    def source_of(self, field: str) -> Source:
        """Return the source of a known field."""
        return Source.MEASURED if field in self.measured else Source.PROFILE

    def updated(self, measured: Collection[Costs]) -> Costs:
        """Return a copy with the medians of what instances have measured, field by field.

        A median lets no single instance of three or more change it at will, and of two the lower
        counts: nobody raises it alone.
        """
        prefill = [costs for costs in measured if costs.prefill_per_token]
        decode = [costs for costs in measured if costs.knows_decode]
        swap = [costs for costs in measured if costs.swap_per_token]
        shared = [costs for costs in measured if costs.decode_per_token]
        link = [costs for costs in measured if costs.link_bytes_per_s]
        network = [costs for costs in measured if costs.network_tokens_per_s]
        medians = {
            name: median_low(getattr(costs, name) for costs in known)
            for names, known in (
                (_OF_PREFILL, prefill),
                (("per_request", "per_kv_token"), decode),
                (("swap_per_token",), swap),
                (("decode_per_token",), shared),
                (("link_bytes_per_s",), link),
                (("network_tokens_per_s",), network),
            )
            if known
            for name in names
        }
        names = dict.fromkeys((*self.measured, *medians))
        return replace(self, **medians, measured=tuple(names))


def link_rate(seconds_per_byte: float) -> float:
    """Return bytes/s, 0 where nothing is known; no link is faster than ``MOST_LINK``."""
    return min(1.0 / seconds_per_byte, MOST_LINK) if seconds_per_byte else 0.0
