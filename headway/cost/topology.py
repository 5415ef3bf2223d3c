"""When prefillers and decoders carry more than unified instances: a rule in seconds a request.

A pass takes ``base + b·prompt tokens + (c + d·k)·batch``, where k is the KV of a decoding request.
So a request of p prompt and o output tokens adds ``w_P = b·p`` and ``w_D = o·(c + d·k)`` seconds to
passes, whoever computes it. What differs is how many share ``base``:

- A **prefiller** pays it once a chunk of C tokens: ``w_P + base·p/C``; C may be its own.
- A **decoder** whose tokens may come L seconds apart pays it once in L: ``w_D / (1 − base/L)``; and
  its memory lets B requests share it at most: ``w_D + base·o/B``.
- A **unified instance** computes prompts in the passes that decode. Under L the prompts, too, have
  only what ``base`` leaves of each pass: ``(w_P + w_D) / (1 − base/L)``, and at least
  ``w_P + w_D + base·max(p/C, o/B)``.

These are the seconds of an instance that a request costs; times requests/s they are instances. A
decode batch and the chunk that the prompts need fit into L exactly while the unified ones are
enough. A split pays where its whole prefillers and decoders are fewer: where L is a small multiple
of ``base`` and prompts are much of the work.

``kept.py`` says what each keeps where there are too few instances for either.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from headway.cluster import Role
from headway.cost.schema import Profile

_EPSILON = 1e-9  # 2.0000000001 instances are 2
_MOST = 1e9  # more than anybody has


@dataclass(frozen=True, slots=True)
class Demand:
    """Mean requests: how many a second, and the tokens of each.

    ``kv_tokens``: of a request, in the mean over the passes that decode it.
    """

    requests_per_s: float
    prompt_tokens: float
    output_tokens: float
    kv_tokens: float

    @classmethod
    def of(cls, requests_per_s: float, prompt_tokens: float, output_tokens: float) -> Demand:
        """Return the demand of requests that are all alike."""
        kv_tokens = prompt_tokens + output_tokens / 2
        return cls(requests_per_s, prompt_tokens, output_tokens, kv_tokens)


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Seconds of an instance of each kind that a request costs; infinite where it carries none."""

    unified: float
    prefill: float
    decode: float


def prefill_seconds(demand: Demand, profile: Profile, chunk_tokens: float) -> float:
    """Return what a prompt adds to the passes that compute it in chunks (w_P), seconds.

    Attention within the profile's chunk is in the time of a token, so larger chunks save none.
    """
    prompt, times = demand.prompt_tokens, profile.pass_time
    context = prompt * max(0.0, prompt - chunk_tokens) / 2
    return times.per_prefill_token * prompt + times.per_prefill_context * context


def decode_seconds(demand: Demand, profile: Profile) -> float:
    """Return what a request adds to the passes that decode it (w_D), seconds."""
    times = profile.pass_time
    return demand.output_tokens * (times.per_request + times.per_kv_token * demand.kv_tokens)


def is_kept_by(profile: Profile, limit: float) -> bool:
    """Return whether a request that decodes alone has its tokens within ``limit`` s."""
    return profile.pass_time.seconds(0, 0, 1, 1) < limit


def chunk_within(
    demand: Demand, profile: Profile, limit: float, longest_prompt: float = 0.0
) -> float:
    """Return the prompt tokens that fit into a pass of ``limit`` s beside an instance's batch.

    ``demand``: of one instance, whose passes all take as long as they may. ``longest_prompt``: the
    tokens that attention of a chunk reads at most. At most the profile's chunk; 0 where decoding
    alone takes longer.
    """
    times = profile.pass_time
    if limit == inf:
        return profile.chunk_tokens
    decoding = demand.requests_per_s * limit * decode_seconds(demand, profile)
    left = limit - times.base - decoding
    a_token = times.per_prefill_token + times.per_prefill_context * longest_prompt
    return min(profile.chunk_tokens, max(0.0, left) / max(a_token, 1e-12))


def request_cost(demand: Demand, profile: Profile, limit: float = inf) -> RequestCost:
    """Return what a request costs; ``limit``: seconds between two tokens of any request."""
    base, chunk = profile.pass_time.base, profile.chunk_tokens
    left = 1 - base / limit
    room = min(profile.max_batch, profile.kv_capacity_tokens / max(demand.kv_tokens, 1.0))
    a_batch = base * demand.output_tokens / max(room, 1.0)
    a_chunk = base * demand.prompt_tokens / chunk
    of_prefiller = base * demand.prompt_tokens / profile.in_role(Role.PREFILL).chunk_tokens
    alone = Demand(0.0, demand.prompt_tokens, demand.output_tokens, demand.kv_tokens)
    small = max(1.0, chunk_within(alone, profile, limit))
    decode = decode_seconds(demand, profile)
    both = prefill_seconds(demand, profile, small) + decode
    num_units = profile.num_units
    return RequestCost(
        max(both / left if left > 0 else inf, both + max(a_chunk, a_batch)) / num_units,
        (prefill_seconds(demand, profile, chunk) + of_prefiller) / num_units,
        max(decode / left if left > 0 else inf, decode + a_batch) / num_units,
    )


@dataclass(frozen=True, slots=True)
class Needs:
    """Instances of each kind that a demand needs, with fractions; infinite where none carries it.

    ``limit``: the seconds between two tokens that they keep.
    """

    unified: float
    prefill: float
    decode: float
    limit: float = inf

    @classmethod
    def of(cls, demand: Demand, profile: Profile, limit: float = inf) -> Needs:
        """Return what the demand fills without a second to spare."""
        cost, rate = request_cost(demand, profile, limit), demand.requests_per_s
        return cls(rate * cost.unified, rate * cost.prefill, rate * cost.decode, limit)

    def over(self, share: float) -> Needs:
        """Return what it needs if ``share`` of every instance's time is planned with."""
        return Needs(self.unified / share, self.prefill / share, self.decode / share, self.limit)

    @property
    def num_unified(self) -> int:
        """Whole unified instances, at least one."""
        return _whole(self.unified)

    @property
    def num_split(self) -> tuple[int, int]:
        """Whole prefillers and decoders, at least one of each."""
        return _whole(self.prefill), _whole(self.decode)


def _whole(need: float) -> int:
    return max(1, ceil(min(need, _MOST) - _EPSILON))
