"""The feedback of every model of a gateway."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from headway.core.gateway.events import Delivery
from headway.service_class import NO_STANDING, Standing
from services.gateway.feedback import Feedback


class Feedbacks:
    """A :class:`Feedback` for each model.

    ``make`` makes one of a model and its count of burst tokens. ``num_burst_tokens`` counts for
    all models together, so several models report none.
    """

    def __init__(
        self,
        make: Callable[[str, Callable[[], int | None]], Feedback],
        models: Sequence[str],
        num_burst_tokens: Callable[[], int | None],
    ) -> None:
        burst = num_burst_tokens if len(models) == 1 else lambda: None
        self._by_model = {model: make(model, burst) for model in models}
        self._only = self._by_model[models[0]] if len(models) == 1 else None

    def start(self) -> None:
        """Start reporting."""
        for feedback in self._by_model.values():
            feedback.start()

    async def stop(self) -> None:
        """Stop reporting."""
        await asyncio.gather(*(feedback.stop() for feedback in self._by_model.values()))

    def predict(self, model: str, num_prompt_tokens: int) -> float:
        """Return the expected output tokens of a model for a prompt; 0 if unknown."""
        return self._by_model[model].predict(num_prompt_tokens)

    def arrived(self, model: str, num_prompt_tokens: int, standing: Standing = NO_STANDING) -> None:
        """Count a request that arrived, unless it yields by its class."""
        self._by_model[model].arrived(num_prompt_tokens, standing)

    def produced(self, deliveries: Sequence[Delivery], model_of: Callable[[str], str]) -> None:
        """Count output tokens; ``model_of`` tells a request's model, "" once its client left."""
        if self._only is not None:
            self._only.produced(len(deliveries))
            return
        for model, num_tokens in Counter(model_of(d.request_id) for d in deliveries).items():
            if model:
                self._by_model[model].produced(num_tokens)

    def observe(self, model: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Record a finished output."""
        self._by_model[model].observe(num_prompt_tokens, num_output_tokens)
