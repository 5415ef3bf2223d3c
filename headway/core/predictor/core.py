"""The predictor's decisions: output lengths learned from finished requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import Code, HeadwayError, invalid
from headway.policies.estimation.bucket_mean import BucketMean, LengthTable

MAX_MODELS = 256
MAX_OBSERVATIONS = 10_000
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Observed:
    """Finished requests of one model: two arrays of one length, in tokens."""

    model: str
    num_prompt_tokens: tuple[int, ...]
    num_output_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = (len(self.num_prompt_tokens), len(self.num_output_tokens))
        if lengths[0] != lengths[1]:
            raise invalid("num_output_tokens' length", lengths[1], f"{lengths[0]}, as the prompts'")
        if lengths[0] > MAX_OBSERVATIONS:
            raise invalid(
                "the number of requests", lengths[0], f"at most {MAX_OBSERVATIONS} a call"
            )
        for name in ("num_prompt_tokens", "num_output_tokens"):
            worst = max(getattr(self, name), default=0)
            if worst > MAX_TOKENS:
                raise invalid(name, worst, f"at most {MAX_TOKENS}")
        if not 0 < len(self.model) <= 256:
            raise invalid("model", self.model, "1 to 256 characters long")


class PredictorCore:
    """``Core[Observed, None]``: it only learns and has no actions; tables are read from it."""

    def __init__(self) -> None:
        self._by_model: dict[str, BucketMean] = {}
        self.num_observed = 0

    @property
    def next_wakeup(self) -> float | None:
        """None: time alone changes nothing."""
        return None

    def wake(self, *, now: float) -> Sequence[None]:
        """Do nothing: time alone changes nothing."""
        return ()

    def handle(self, event: Observed, *, now: float) -> Sequence[None]:
        """Learn from finished requests. RESOURCE_EXHAUSTED for a model beyond ``MAX_MODELS``."""
        means = self._by_model.get(event.model)
        if means is None:
            if len(self._by_model) >= MAX_MODELS:
                message = f"{MAX_MODELS} models are known, the most allowed: restart the predictor"
                raise HeadwayError(Code.RESOURCE_EXHAUSTED, message)
            means = self._by_model[event.model] = BucketMean()
        pairs = zip(event.num_prompt_tokens, event.num_output_tokens, strict=True)
        for num_prompt_tokens, num_output_tokens in pairs:
            means.observe(num_prompt_tokens, num_output_tokens)
            self.num_observed += 1
        return ()

    def table(self, model: str) -> LengthTable:
        """Return the table of a model; an empty one for an unknown model."""
        return self._by_model.get(model, BucketMean()).table()
