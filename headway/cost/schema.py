"""The fields of a profile and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.bounds import Bounded, between, over
from headway.cluster import Role
from headway.cost.buckets import BUCKET_NAMES, NUM_BUCKETS, Buckets
from headway.cost.pass_time import PassTime
from headway.cost.velocity import Memory, convertible_velocity
from headway.errors import Code, HeadwayError, invalid, require_between, require_over

MAKE_ONE = "`headway profile run --model MODEL --out FILE.toml`"
"""The command that makes a profile: what every error about a missing one names."""
_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class Profile(Bounded):
    """Costs of an instance of a deployment; memory and chunk per DP unit, velocities per instance.

    ``num_gpus``: accelerators an instance takes. ``num_units``: its DP units, in lock-step.
    ``max_batch``: requests that decode together. ``swap_per_token``: seconds to move a token's
    KV to or from host memory, ``host_capacity_tokens`` what a DP unit may keep there.
    ``start_up``: seconds from an instance's order to its first request. Velocities are tokens/s:
    V_P, V_N, V_D by bucket (``decode_tokens_per_s``, nine or none) and V_conv; None or none is
    *not known*, which is not 0. ``origin``: where all of this comes from, for people.
    """

    name: str
    model: str
    device: str
    dtype: str
    parallelism: str
    origin: str
    pass_time: PassTime
    kv_bytes_per_token: int = between(1, _MOST)
    kv_capacity_tokens: int = between(1, _MOST)
    chunk_tokens: int = between(1, _MOST)
    num_gpus: int = between(1, _MOST, default=1)
    num_units: int = between(1, _MOST, default=1)
    block_size: int = between(1, _MOST, default=16)
    max_batch: int = between(1, _MOST, default=256)
    swap_per_token: float = between(0, 1, default=0.0)
    host_capacity_tokens: int = between(0, _MOST, default=0)
    link_bytes_per_s: float = over(0, default=12.5e9)
    start_up: float = between(0, 1e6, default=5.0)
    convertible_chunk_tokens: int | None = between(1, _MOST, default=None)
    prefill_chunk_tokens: int | None = between(1, _MOST, default=None)
    prefill_tokens_per_s: float | None = over(0, default=None)
    network_tokens_per_s: float | None = over(0, default=None)
    convertible_tokens_per_s: float | None = over(0, default=None)
    decode_tokens_per_s: Sequence[float] = ()
    buckets: Buckets = field(default_factory=Buckets)

    def __post_init__(self) -> None:
        for name in ("name", "model", "device", "dtype", "parallelism", "origin"):
            if not getattr(self, name).strip():
                raise invalid(name, getattr(self, name), "a text that says something")
        Bounded.__post_init__(self)
        require_between("kv_capacity_tokens", self.kv_capacity_tokens, self.block_size, _MOST)
        if len(self.decode_tokens_per_s) not in (0, NUM_BUCKETS):
            limit = f"{NUM_BUCKETS} velocities, one a bucket, or left out"
            raise invalid("decode_tokens_per_s", tuple(self.decode_tokens_per_s), limit)
        for name, velocity in zip(BUCKET_NAMES, self.decode_tokens_per_s, strict=False):
            require_over(f"decode_tokens_per_s {name}", velocity, 0)
        object.__setattr__(self, "decode_tokens_per_s", tuple(self.decode_tokens_per_s))

    def in_role(self, role: Role) -> Profile:
        """Return the same deployment with the chunk of a role.

        HeadwayError for a convertible decoder without a restricted one.
        """
        if role is Role.CONVERTIBLE:
            chunk = self._known("convertible_chunk_tokens", self.convertible_chunk_tokens)
            return replace(self, chunk_tokens=int(chunk))
        if role is Role.PREFILL and self.prefill_chunk_tokens:
            return replace(self, chunk_tokens=self.prefill_chunk_tokens)
        return self

    # --- what a stage releases ----------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """Memory and chunk of one of its DP units."""
        return Memory(self.kv_capacity_tokens, self.chunk_tokens, self.max_batch, self.num_units)

    def prefill_velocity(self, factor: float = 1.0, measured_network: float | None = None) -> float:
        """Return ``min(V_P, V_N)``, tokens/s; an unknown V_N binds nothing (equation 2).

        ``factor``: by which live passes correct V_P. A V_N that was measured stands over the
        profile's. HeadwayError without a V_P.
        """
        prefill = factor * self._known("prefill_tokens_per_s", self.prefill_tokens_per_s)
        return min(prefill, measured_network or self.network_tokens_per_s or prefill)

    def decode_velocity(self, bucket: int) -> float:
        """Return V_D of a bucket, tokens/s; HeadwayError where it is not known."""
        if not self.decode_tokens_per_s:
            raise self._unknown("decode_tokens_per_s")
        return self.decode_tokens_per_s[bucket]

    def convertible_velocity(self, decode_batch: float | None, tpot_slo: float) -> float:
        """Return V_conv at a decode batch, or as profiled (None); HeadwayError if not known."""
        if decode_batch is None:
            return self._known("convertible_tokens_per_s", self.convertible_tokens_per_s)
        chunk = self._known("convertible_chunk_tokens", self.convertible_chunk_tokens)
        return convertible_velocity(chunk, decode_batch, tpot_slo)

    def _known(self, name: str, value: float | None) -> float:
        if value is None:
            raise self._unknown(name)
        return value

    def _unknown(self, name: str) -> HeadwayError:
        message = (
            f"profile {self.name!r} has no {name}: measure it and add it to the file, or make "
            f"a profile of this deployment with {MAKE_ONE}"
        )
        return HeadwayError(Code.FAILED_PRECONDITION, message, param=name)


def require_profile(policy: str, profile: Profile | None) -> Profile:
    """Return the profile; HeadwayError where a policy that needs one was given none."""
    if profile is None:
        message = (
            f"{policy} needs to know what an instance carries: give its profile with --profile "
            f"FILE ({MAKE_ONE} measures one), or choose another policy"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="profile")
    return profile
