"""Loads to come: what instances report of them, and what has been ordered since."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.scheduler.admission import horizon_of, wanted_reports
from headway.core.scheduler.ahead import Foresight
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import LoadReport, RunningRequests
from headway.policies.estimation import AsOf, Estimation
from headway.policies.placement import DecodeUnit
from headway.policies.rescheduling import Horizon, simulate_future
from headway.request import StreamKey
from headway.sim.views.instance import ViewInstance
from headway.sim.views.unit import Unit, ViewRequest


class ExpectedLengths:
    """Output lengths as workers estimate them, anew every few tokens."""

    def __init__(self, estimation: Estimation | None) -> None:
        self._estimation = estimation

    def total(self, job: ViewRequest, num_output_tokens: int) -> float:
        """Return the output tokens expected of a request that has so many; 0 if unknown."""
        estimation, at = self._estimation, num_output_tokens
        if estimation is None:
            return job.expected_tokens
        if at:
            at -= (at - 1) % estimation.interval
        left = job.request.num_output_tokens - at
        remaining = estimation.remaining(AsOf(job.key, job.num_prompt_tokens, at, left))
        return 0.0 if remaining is None else at + remaining


class Outlook:
    """The last load report of every instance, and what is on its way there."""

    def __init__(self, settings: SchedulerSettings, lengths: ExpectedLengths) -> None:
        self.reports: dict[str, LoadReport] = {}
        self.jobs: dict[StreamKey, ViewRequest] = {}
        """Requests of the reports."""
        self._lengths = lengths
        self._interval = wanted_reports(settings).load_interval
        self._horizon = horizon_of(settings)
        self._instances: dict[str, ViewInstance] = {}
        self._foresights: dict[str, Foresight] = {}
        self._coming: dict[str, dict[StreamKey, None]] = {}

    def join(self, instance: ViewInstance) -> None:
        """Look at an instance from now on; one that only prefills reports that nobody decodes."""
        worker_id = instance.info.worker_id
        self._instances[worker_id] = instance
        self._foresights[worker_id], self._coming[worker_id] = Foresight(), {}

    def expect(self, job: ViewRequest) -> None:
        """Note how much more a request that has been prefilled will generate."""
        job.predicted_total = job.num_prompt_tokens + self._lengths.total(job, 0)

    def ordered(self, job: ViewRequest, unit: Unit) -> None:
        """Note that a request will come to a unit."""
        worker_id, number = unit.view.unit
        self._foresights[worker_id].add(job.key, number, job.num_tokens, job.predicted_remaining)
        self._coming[worker_id][job.key] = None
        unit.view.ahead = None

    def landed(self, job: ViewRequest) -> None:
        """Note that a request has come."""
        assert job.unit is not None, "to a unit"
        self._coming[job.unit.view.unit.worker_id].pop(job.key, None)

    def dropped(self, job: ViewRequest, unit: Unit) -> None:
        """Note that a request has left a unit, or does not come."""
        worker_id = unit.view.unit.worker_id
        if worker_id in self._foresights:
            self._foresights[worker_id].drop(job.key)
            self._coming[worker_id].pop(job.key, None)
            unit.view.ahead = None

    def look(self, now: float) -> None:
        """Take the reports that have come since the last look."""
        for worker_id, instance in self._instances.items():
            num_steps = instance.load_reported(now, self._interval)
            if num_steps is None:
                continue
            units = tuple(self._running(unit, num_steps) for unit in instance.units)
            report = self.reports[worker_id] = LoadReport(units, instance.step_time)
            self._foresights[worker_id].report(report, self._coming[worker_id])
            for unit in instance.units:
                unit.view.ahead = None

    def fill(self, views: Iterable[DecodeUnit]) -> None:
        """Give units their predicted loads, where these have changed."""
        for view in views:
            if view.ahead is None:
                worker_id, number = view.unit
                foresight = self._foresights[worker_id]
                view.ahead = foresight.of(number, view.load_tokens, self._horizon)

    def _running(self, unit: Unit, num_steps: int) -> RunningRequests:
        """Return what a unit decodes, so many steps into its pass, and its load to come."""
        keys, tokens, remaining = list[StreamKey](), list[int](), list[float]()
        for job, done in unit.decoding(num_steps):
            self.jobs[job.key] = job
            keys.append(job.key)
            tokens.append(job.num_prompt_tokens + done - 1)
            remaining.append(max(0.0, self._lengths.total(job, done) - done))
        lost = [job for _, _, job in unit.queue if job.done]
        lost_tokens = [job.num_tokens for job in lost]
        left = [max(0.0, self._lengths.total(job, job.done) - job.done) for job in lost]
        future = _future([*tokens, *lost_tokens], [*remaining, *left], self._horizon)
        number = unit.view.unit.unit
        return RunningRequests(number, tuple(keys), tokens, remaining, future, sum(lost_tokens))


def _future(tokens: list[int], remaining: list[float], horizon: Horizon) -> tuple[float, ...]:
    return tuple(simulate_future(tokens, remaining, horizon).tolist())
