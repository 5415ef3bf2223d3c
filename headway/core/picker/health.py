"""Whether an endpoint may be named: by its scrapes and by what became of requests there."""

from __future__ import annotations

from enum import IntEnum
from math import inf

from headway.core.picker.events import EndpointMetrics, Scraped, Silence


class Level(IntEnum):
    """UP: it may be named. SILENT: only if no other is up. DOWN: not at all."""

    UP = 0
    SILENT = 1
    DOWN = 2


class Health:
    """The health of one endpoint.

    One that is scraped is down or silent until a scrape says otherwise. One that is not rests
    after a failure, twice as long after each further one.
    """

    def __init__(self, has_metrics: bool, rests: tuple[float, float]) -> None:
        self._has_metrics = has_metrics
        self._shortest, self._longest = rests
        self._rest = self._shortest
        self._rest_until = inf if has_metrics else -inf
        self.level = Level.DOWN if has_metrics else Level.UP
        self._heard_at = -inf

    @property
    def next_wakeup(self) -> float:
        """Instant at which it has rested; inf for none."""
        return self._rest_until if self.level is Level.DOWN and not self._has_metrics else inf

    def scraped(self, scrape: Scraped, *, now: float) -> None:
        """Take a scrape; one that got no answer counts unless a response came meanwhile."""
        match scrape.result:
            case EndpointMetrics() | Silence.NO_METRICS:
                self._heard_at, self.level = now, Level.UP
            case Silence.REFUSED:
                self.level = Level.DOWN
            case Silence.TIMEOUT:
                if self._heard_at < scrape.begun_at and self.level is Level.UP:
                    self.level = Level.SILENT

    def responded(self, *, now: float) -> None:
        """Note that it has answered a request."""
        self._heard_at, self._rest = now, self._shortest
        if self.level is Level.SILENT or not self._has_metrics:
            self.level = Level.UP

    def failed(self, *, now: float) -> None:
        """Note that a request could not be served there."""
        self.level = Level.DOWN
        if not self._has_metrics:
            self._rest_until = now + self._rest
            self._rest = min(2 * self._rest, self._longest)

    def wake(self, *, now: float) -> None:
        """Let it be tried again once it has rested."""
        if now >= self.next_wakeup:
            self.level = Level.UP
