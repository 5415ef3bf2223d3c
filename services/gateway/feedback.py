"""Reports to the predictor and the autoscaler, and the predictor's estimates, once a second.

Nothing waits for a report: one that fails is dropped and counted.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc

from headway.core.autoscaler.events import RateReport
from headway.core.autoscaler.models import is_meant
from headway.core.gateway.events import Delivery
from headway.errors import HeadwayError
from headway.policies.scaling import RateMeter
from headway.service_class import NO_STANDING, Standing
from services.gateway.metrics import GatewayMetrics
from services.runtime import wire
from services.runtime.channel import Channels
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks, essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Member, Store

_INTERVAL = 1.0
_CALL_TIMEOUT = 1.0
_MOST_OBSERVED = 8192  # finished outputs kept for the next report


@dataclass(frozen=True, slots=True)
class MeanLengths:
    """A table of mean output tokens by prompt length; the last bucket has no upper bound."""

    upper_bounds: Sequence[int] = ()
    means: Sequence[float] = ()

    def predict(self, num_prompt_tokens: int) -> float:
        """Return the expected output tokens; 0 if unknown."""
        place = bisect_left(self.upper_bounds, num_prompt_tokens)
        return self.means[place] if place < len(self.means) else 0.0


class Feedback:
    """Figures between two reports; rates are over the time since the last one."""

    def __init__(
        self,
        config: ServiceConfig,
        model: str,
        num_burst_tokens: Callable[[], int | None],
        store: Store,
        metrics: GatewayMetrics,
        now: Callable[[], float],
    ) -> None:
        self._num_burst_tokens = num_burst_tokens
        self._config = config
        self._model = model
        self._store = store
        self._metrics = metrics
        self._now = now
        self._lengths = MeanLengths()
        self._observed: list[tuple[int, int]] = []
        self._meter = RateMeter(now=now())
        self._channels = {
            service: Channels(config, ServiceRole(service))
            for service in ("predictor", "autoscaler")
        }
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start reporting."""
        self._task = essential(self._run(), "feedback")

    async def stop(self) -> None:
        """Stop reporting."""
        await end_tasks(self._task)
        for channels in self._channels.values():
            await channels.close()

    def predict(self, num_prompt_tokens: int) -> float:
        """Return the expected output tokens of a prompt; 0 if unknown."""
        return self._lengths.predict(num_prompt_tokens)

    def arrived(self, num_prompt_tokens: int, standing: Standing = NO_STANDING) -> None:
        """Count a request that arrived, unless it yields by its class."""
        self._meter.arrived(num_prompt_tokens, self.predict(num_prompt_tokens), standing)

    def produced(self, num_tokens: int) -> None:
        """Count output tokens."""
        self._meter.produced(num_tokens)

    def observe(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Record a finished output."""
        if len(self._observed) < _MOST_OBSERVED:
            self._observed.append((num_prompt_tokens, num_output_tokens))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            await asyncio.gather(
                self._try("predictor", self._ask_predictor),
                self._try("autoscaler", self._tell_autoscaler),
            )

    async def _try(
        self, service: str, report: Callable[[grpc.aio.Channel], Awaitable[None]]
    ) -> None:
        try:
            channel = await self._channel(service)
            if channel is not None:
                await report(channel)
        except (HeadwayError, OSError):
            self._metrics.count("feedback_failures", service)

    async def _channel(self, service: str) -> grpc.aio.Channel | None:
        """Return a channel to the service's first member; keep it while that member stays."""
        members: list[Member] = await self._store.members(service)
        meant = [m for m in members if service != "autoscaler" or is_meant(self._model, m.model)]
        address = min((m.address for m in meant), default="")
        await self._channels[service].close(keep=(address,))
        return self._channels[service].to(address) if address else None

    async def _ask_predictor(self, channel: grpc.aio.Channel) -> None:
        observed, self._observed = self._observed, []
        if observed:
            await wire.observe(channel, self._model, observed, within=_CALL_TIMEOUT)
        table = await wire.length_table(channel, self._model, within=_CALL_TIMEOUT)
        self._lengths = MeanLengths(*table)

    async def _tell_autoscaler(self, channel: grpc.aio.Channel) -> None:
        now = self._now()
        rates, window = self._meter.read(now=now, num_burst=self._num_burst_tokens())
        report = RateReport.of(self._config.service_id, rates, window, now, self._model)
        await wire.report_rates(channel, report, within=_CALL_TIMEOUT)


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
