"""UniBoost's priority: Φ = a − b_γ(w̃), arrival time minus a boost that fades with service.

``b_γ(w) = (1/γ) · ln(1 / (1 − e^(−γw)))`` seconds, γ in 1/s, w in seconds of service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, isfinite, log, log1p

from headway.bounds import Bounded, between
from headway.cost.costs import Constant, Costs, Source
from headway.errors import invalid
from headway.policies.batching.protocol import Batching, Candidate
from headway.policies.readers import CostReader

_LN_2 = log(2.0)
_MEMORY = 0.98
_DRIFT = 1.25
_TIMES = (("prompt token", "prefill_per_token"), ("output token", "decode_per_token"))
"""τ_p and τ_d by the names of a constant and of a cost."""


def boost(work: float, gamma: float) -> float:
    """Return b_γ(w), seconds: ``work`` over 0 in seconds, ``gamma`` from 0 to inf in 1/s."""
    if gamma == 0.0:
        return inf
    exponent = gamma * work
    if exponent > _LN_2:  # each form where it loses no digits
        return -log1p(-exp(-exponent)) / gamma
    return -log(-expm1(-exponent)) / gamma


def boosted(arrival_at: float, work: float, gamma: float) -> tuple[float, float]:
    """Least first: by Φ; γ = inf is arrival and γ = 0 least attained service, both exactly."""
    if gamma == 0.0:
        return work, arrival_at
    return arrival_at - boost(work, gamma), arrival_at


def prompt_work(candidate: Candidate) -> int:
    """Return s_pre − h: the prompt tokens that this pool has to compute."""
    return max(0, candidate.num_prompt_tokens - candidate.num_cached_tokens)


def effective_work(candidate: Candidate) -> int:
    """Return w̃ = max(w, s_pre − h), tokens, at least 1: the boost has no bound at 0."""
    return max(candidate.attained_tokens, prompt_work(candidate), 1)


@dataclass(frozen=True, slots=True)
class BoostParams(Bounded):
    """``gamma``: γ, 1/s, from 0 (least attained service) to inf (first come, first served).

    ``seconds_per_token``: service time that turns tokens of work into seconds, for prompts and
    outputs alike; 0: τ_p of a prompt token and τ_d of a decoded one, as the worker's passes cost.
    """

    gamma: float = 0.05
    seconds_per_token: float = between(0, 1, default=0.0)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        require_gamma(self.gamma)


def require_gamma(gamma: float) -> None:
    """Refuse what is no γ; NaN, too."""
    if not (gamma in (0.0, inf) or 1e-9 <= gamma <= 1e9):
        raise invalid("gamma", gamma, "0, inf, or from 1e-9 to 1e9 per second")


class ServiceTime:
    """Seconds of the pool's time that a token takes.

    The mean over the last fifty passes or so is adopted when it has drifted by a quarter, so that
    ranks hold for as long as nothing has really changed.
    """

    def __init__(self, fixed: float = 0.0) -> None:
        self._is_fixed = fixed > 0.0
        self._has_measured = False
        self._seconds = self._tokens = 0.0
        self.seconds_per_token = fixed or 1e-3

    def passed(self, pass_time: float, num_tokens: int, num_steps: int) -> bool:
        """Count equal steps; whether the mean was adopted anew."""
        if self._is_fixed or num_tokens < 1 or not (isfinite(pass_time) and pass_time > 0.0):
            return False
        kept: float = _MEMORY**num_steps
        weight = (1.0 - kept) / (1.0 - _MEMORY)
        self._seconds = kept * self._seconds + weight * pass_time
        self._tokens = kept * self._tokens + weight * num_tokens
        mean = self._seconds / self._tokens
        if self._has_measured and 1 / _DRIFT < mean / self.seconds_per_token < _DRIFT:
            return False
        self._has_measured, self.seconds_per_token = True, mean
        return True


class Boosted(Batching, CostReader):
    """The base of all policies with a boost: γ, and the time that a token of work takes.

    τ_p and τ_d are the worker's, by profile or measured. One that is not known yet is the mean
    time of a token.
    """

    def __init__(self, params: BoostParams | None = None) -> None:
        params = params or BoostParams()
        self.gamma = params.gamma
        self._given = params.seconds_per_token
        self._service = ServiceTime(self._given)
        self._per_prompt: Constant | None = None
        self._per_output: Constant | None = None
        self._epoch = 0

    def learn(self, costs: Costs) -> None:
        """Take τ_p and τ_d; all ranks change with them."""
        constants = tuple(
            Constant(name, getattr(costs, field), costs.source_of(field))
            if getattr(costs, field) and not self._given
            else None
            for name, field in _TIMES
        )
        if constants != (self._per_prompt, self._per_output):
            self._per_prompt, self._per_output = constants
            self._epoch += 1

    def constants(self) -> Sequence[Constant]:
        """Return τ_p and τ_d."""
        source = Source.GIVEN if self._given else Source.MEASURED
        mean = self._service.seconds_per_token
        return tuple(
            known or Constant(name, mean, source)
            for known, (name, _) in zip((self._per_prompt, self._per_output), _TIMES, strict=True)
        )

    @property
    def epoch(self) -> int:
        """Changes with γ and with the service time."""
        return self._epoch

    def passed(self, pass_time: float, num_tokens: int, num_steps: int = 1) -> None:
        """Measure the service time."""
        self._epoch += self._service.passed(pass_time, num_tokens, num_steps)

    def tune(self, gamma: float) -> None:
        """Use this γ from now on; HeadwayError for what is none."""
        require_gamma(gamma)
        if gamma != self.gamma:
            self.gamma = gamma
            self._epoch += 1

    def seconds(self, candidate: Candidate, num_tokens: int) -> float:
        """Return tokens of work in seconds, as arrivals are: the prompt's first, then its output's.

        ``τ_p · min(n, s_pre − h) + τ_d · (n − (s_pre − h))⁺``.
        """
        num_prompt = min(num_tokens, prompt_work(candidate))
        mean, prompt, output = self._service.seconds_per_token, self._per_prompt, self._per_output
        per_prompt = mean if prompt is None else prompt.value
        per_output = mean if output is None else output.value
        return num_prompt * per_prompt + (num_tokens - num_prompt) * per_output

    def priority(self, candidate: Candidate, num_tokens: int) -> tuple[float, float]:
        """Return Φ for so many tokens of work, then arrival."""
        return boosted(candidate.arrival_at, self.seconds(candidate, num_tokens), self.gamma)
