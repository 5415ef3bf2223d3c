"""An instance: DP units in lock-step, one pass after another, many equal ones at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from headway.core.worker.settings import WorkerSettings
from headway.cost.pass_time import EACH_TERM, Share
from headway.cost.velocity import LimitsInForce
from headway.policies.batching import Batching
from headway.sim.device import MOST_STEPS, Steps
from headway.sim.views.agenda import Agenda
from headway.sim.views.load import LoadView
from headway.sim.views.order import PromptOrder
from headway.sim.views.unit import Unit, ViewRequest
from headway.sim.worker import InstanceSpec

_MOST_REPORTS = 20
"""Reports that are made up for when somebody looks; of earlier ones nothing is left."""


class PassEnded(NamedTuple):
    """A pass that has ended, as the scheduler is told.

    ``computed``: prompt tokens by unit since the last report. ``pass_time``: seconds, None for a
    pass without prompts.
    """

    instance: ViewInstance
    computed: list[int]
    prefilled: list[ViewRequest]
    dispatch_ids: list[int]
    pass_time: float | None


class Owner(Protocol):
    """The cluster, as an instance speaks to it."""

    def finished(self, job: ViewRequest, at: float) -> None:
        """Take a request whose last token was drawn."""

    def reported(self, report: PassEnded) -> None:
        """Take the report of a pass that ends now, of an instance that prefills."""

    def retry_waiting(self) -> None:
        """Note that a decode instance has more room."""


class Pass:
    """Equal steps in a row: when the first begins, how long it takes, and by how much more each
    further one does. It may have been planned before it begins.
    """

    __slots__ = ("began_at", "growth", "has_prompts", "num_steps", "step")

    def __init__(self) -> None:
        self.began_at = self.step = self.growth = 0.0
        self.num_steps = 0
        self.has_prompts = False

    def ends_at(self, num_steps: int) -> float:
        """Return when so many of its steps have ended."""
        k = num_steps
        return self.began_at + k * self.step + self.growth * (k * (k - 1) * 0.5)

    def steps_until(self, at: float) -> int:
        """Return the least number of its steps that end at or after an instant, at least 1."""
        return Steps(self.began_at, self.step, self.growth).steps_until(at)

    def steps_done(self, now: float) -> int:
        """Return its steps that have ended."""
        if now <= self.began_at or self.num_steps <= 1:
            return 0
        return min(self.steps_until(now), self.num_steps) - 1


class ViewInstance:
    """One instance: its units and its pass."""

    def __init__(
        self,
        worker_id: str,
        spec: InstanceSpec,
        settings: WorkerSettings,
        agenda: Agenda,
        owner: Owner,
        limits: LimitsInForce,
    ) -> None:
        info, profile = spec.info(worker_id), spec.deployed
        self.spec, self.info = spec, info
        # Swaps are known to be sooner than computing again, or not: there is nothing to measure.
        again = profile.pass_time.seconds(profile.chunk_tokens, 0, 0, 0) / profile.chunk_tokens
        swaps = 2 * profile.swap_per_token <= again
        host_tokens, watermark = profile.host_capacity_tokens, settings.watermark
        self.load = LoadView(info)
        self.units = [
            Unit(self.load, info, n, watermark, host_tokens if swaps else 0, limits)
            for n in range(info.num_units)
        ]
        self.max_request_tokens = min(info.max_model_len, self.units[0].memory.capacity)
        self.report_at = settings.report_interval
        self.num_passes = 0
        self._settings = settings
        self._pass_time, self._swap_per_token = profile.pass_time, profile.swap_per_token
        self._agenda, self._owner = agenda, owner
        self._pass = Pass()
        self._version = 0
        self._coming: deque[tuple[float, int, list[tuple[ViewRequest, Unit]]]] = deque()
        self._dispatch_ids: list[int] = []
        self._done: list[ViewRequest] = []
        self._computed = [0] * len(self.units)
        self._loads_at = 0.0
        self._leaving: list[tuple[ViewRequest, Callable[[float | None], None]]] = []

    @property
    def step_time(self) -> float:
        """Seconds of a step of its newest pass."""
        return self._pass.step

    def rank_by(self, name: str, policy: Batching) -> None:
        """Compute prompts in a policy's order, instead of by arrival."""
        for unit in self.units:
            unit.order = PromptOrder(name, policy)

    # --- news -------------------------------------------------------------------------

    def receive(self, at: float, dispatch_id: int, jobs: list[tuple[ViewRequest, Unit]]) -> None:
        """Take a dispatch, which arrives ``at``."""
        self._coming.append((at, dispatch_id, jobs))
        self.changed(at)

    def changed(self, at: float) -> None:
        """Let the step under way ``at`` be the last of its pass, and plan the next one.

        A pass with prompts has a single step.
        """
        current = self._pass
        if not current.num_steps:
            self._begin(at)
        elif current.has_prompts:
            return
        elif at <= current.began_at:
            self._begin(current.began_at)
        else:
            if at >= self.report_at:
                self.look(at)
            num_steps = current.steps_until(at)
            if num_steps < current.num_steps:
                ends_at = current.ends_at(num_steps)
                self._advance(num_steps)
                if ends_at >= self.report_at:
                    self._refresh(ends_at)
                self._begin(ends_at)

    def leave(self, job: ViewRequest, at: float, left: Callable[[float | None], None]) -> None:
        """Have a request leave when the step under way has ended.

        ``left`` is told when, or None if it decodes here no more.
        """
        self._leaving.append((job, left))
        self.changed(at)

    def stay(self, job: ViewRequest, at: float) -> None:
        """Let a request that was to leave decode on."""
        assert job.unit is not None, "it is here"
        job.unit.release(job)
        job.unit.joined.append(job)
        self.changed(at)

    def num_drawn(self, job: ViewRequest, now: float) -> int:
        """Return the output tokens of a request that decodes here."""
        assert job.unit is not None, "it is here"
        return job.done + job.unit.clock - job.since + self._pass.steps_done(now)

    def load_reported(self, now: float, interval: float) -> int | None:
        """Return how far into its pass it was when it last reported its load; None before."""
        current = self._pass
        due_at = self._loads_at + (now - self._loads_at) // interval * interval
        while due_at >= self._loads_at:
            num_steps, ends_at = 0, due_at
            if current.num_steps > 1 and due_at > current.began_at:
                num_steps = current.steps_until(due_at)
                ends_at = current.ends_at(num_steps)
            if ends_at <= now and (not num_steps or num_steps < current.num_steps):
                self._loads_at = ends_at + interval
                return num_steps
            due_at -= interval
        return None

    def look(self, now: float) -> None:
        """Report the load as it was when reports were last due: at the end of a step."""
        current, interval, reported = self._pass, self._settings.report_interval, 0
        due_at = max(self.report_at, now - _MOST_REPORTS * interval)
        while due_at <= now and current.num_steps > 1:  # else the pass reports at its end
            num_steps = current.steps_until(due_at)
            ends_at = current.ends_at(num_steps)
            if ends_at > now or num_steps >= current.num_steps:
                break
            due_at, reported = ends_at + interval, num_steps
        if reported:
            self._refresh(due_at - interval, reported)

    def _refresh(self, at: float, num_steps: int = 0) -> None:
        self.report_at = at + self._settings.report_interval
        for unit in self.units:
            unit.refresh(num_steps)

    # --- passes -----------------------------------------------------------------------

    def _begin(self, at: float) -> None:
        """Plan the pass that begins then, in place of one that was planned to."""
        self._version += 1
        if self._coming:
            self._take_in(at)
        if self._leaving:
            self._let_go(at)
        current, swapped, is_beside = self._pass, 0, False
        current.has_prompts, current.num_steps = False, 0
        shares: list[tuple[int, int, int, int]] = []
        for number, unit in enumerate(self.units):
            if unit.joined or unit.queue or unit.batch:
                shares.append(self._share(number, unit, at))
                memory = unit.memory
                if memory.leaving or memory.returning:
                    is_beside = is_beside or memory.returning > 0
                    swapped = max(swapped, memory.swapped())
        if any(share[0] or share[2] for share in shares) or swapped:
            current.began_at = at
            most = self._set_pace(shares)
            if swapped:
                most, current.growth = 1, 0.0
                swap_time = self._swap_per_token * swapped
                current.step = (
                    max(current.step, swap_time) if is_beside else current.step + swap_time
                )
            for unit in self.units:
                if unit.batch and most > 1:
                    most = unit.steps_left(most)
            current.num_steps = most
            self._agenda.at(current.ends_at(most), self._end, self._version)
        elif self._coming:
            self._agenda.at(self._coming[0][0], self._wake, self._version)

    def _share(self, number: int, unit: Unit, at: float) -> tuple[int, int, int, int]:
        """Let a unit plan its part of the next pass: see ``cost.pass_time.Share``."""
        num_tokens = context = 0
        if unit.joined:
            unit.serve_joined(at)
        batch = unit.batch
        if unit.is_short():
            batch = unit.make_room(at)
        if unit.queue:
            num_tokens, context = unit.serve_prompts(self._done, at)
            if num_tokens:
                self._computed[number] += num_tokens
                self._pass.has_prompts = True
        return num_tokens, context, batch, unit.kv_tokens + batch

    def _set_pace(self, shares: list[tuple[int, int, int, int]]) -> int:
        """Note how long steps take; return for how many of them that holds."""
        pass_time, current = self._pass_time, self._pass
        if len(shares) == 1:
            current.step = pass_time.seconds(*shares[0])
        else:
            current.step = pass_time.lock_step([Share(*share) for share in shares])
        if current.has_prompts:
            current.growth = 0.0
            return 1
        per_token = pass_time.per_kv_token
        if len(shares) == 1:
            current.growth = per_token * shares[0][2]
            return MOST_STEPS
        if pass_time.gate == EACH_TERM:
            lines = [(per_token * kv, per_token * batch) for _, _, batch, kv in shares]
        else:
            awaited = pass_time.awaited([Share(*share) for share in shares])
            lines = [(pass_time.seconds(*s), per_token * s.batch) for s in awaited]
        value, current.growth = max(lines)
        steeper = (line for line in lines if line[1] > current.growth)
        overtaken = (1 + int((value - v) / (growth - current.growth)) for v, growth in steeper)
        return min(overtaken, default=MOST_STEPS)

    def _take_in(self, at: float) -> None:
        """Queue what has arrived by then."""
        coming = self._coming
        while coming and coming[0][0] <= at:
            _, dispatch_id, jobs = coming.popleft()
            self._dispatch_ids.append(dispatch_id)
            for job, unit in jobs:
                unit.add(job, at)

    def _let_go(self, at: float) -> None:
        """Let requests leave that are to, unless they have ended."""
        leaving, self._leaving = self._leaving, []
        for job, left in leaving:
            if job.in_clock and job.unit is not None:
                job.unit.leave(job)
                job.served += at
                left(at)
            else:
                left(None)

    def _wake(self, version: int) -> None:
        """Begin a pass that was waited for, unless one has begun meanwhile."""
        if version == self._version:
            self._begin(self._agenda.now)

    def _advance(self, num_steps: int) -> int:
        """Go so many steps of the pass; return how many end, or their reasoning does."""
        current, num_ended = self._pass, 0
        self.num_passes += num_steps
        for unit in self.units:
            if unit.marks and unit.marks[0][0] <= unit.clock + num_steps:
                for job, steps in unit.reached(num_steps):
                    job.answer_at = current.ends_at(steps)
            for job in unit.advance(num_steps):
                self._owner.finished(job, current.ends_at(num_steps))
                num_ended += 1
            num_ended += unit.has_reasoned
        return num_ended

    def _end(self, version: int) -> None:
        """End the pass: tell the scheduler, and begin the next one."""
        if version != self._version:
            return
        now, had_prompts = self._agenda.now, self._pass.has_prompts
        num_ended = self._advance(self._pass.num_steps)
        prefilled: list[ViewRequest] = []
        if self._done:
            num_ended += self._draw(prefilled)
        if had_prompts or self._dispatch_ids or prefilled or num_ended or now >= self.report_at:
            self._report(prefilled, had_prompts, now)
            if had_prompts and self._settings.linger and self._has_prompts_alone:
                self._pass.num_steps = 0
                self._version += 1
                self._agenda.at(now + self._settings.linger, self._wake, self._version)
                return
        self._begin(now)

    @property
    def _has_prompts_alone(self) -> bool:
        """True if prompts are left over and nobody who decodes would have to wait."""
        return any(u.queue for u in self.units) and not any(u.batch or u.joined for u in self.units)

    def _draw(self, prefilled: list[ViewRequest]) -> int:
        """Draw a token of each request whose tokens are computed; return how many end with it.

        ``prefilled`` takes those that need a handoff.
        """
        done, self._done = self._done, []
        now, decodes, num_ended = self._agenda.now, self.info.role.decodes, 0
        for job in done:
            unit = job.unit
            assert unit is not None, "it was computed on one"
            if not job.done:
                job.first_at = now
                job.served += now
            if job.done == job.request.num_reasoning_tokens:
                job.answer_at = now
            job.done += 1
            job.num_tokens += 1
            if job.done == job.request.num_output_tokens:
                unit.release(job)
                self._owner.finished(job, now)
                num_ended += 1
            elif decodes:
                unit.release(job)
                unit.joined.append(job)
            else:
                prefilled.append(job)
        return num_ended

    def _report(self, prefilled: list[ViewRequest], had_prompts: bool, now: float) -> None:
        self._refresh(now)
        if not self.info.role.prefills:
            if had_prompts:  # of requests that were preempted
                self.load.computed(self._computed)
                self._computed = [0] * len(self.units)
            self._owner.retry_waiting()
            return
        seconds = self._pass.step if had_prompts else None
        report = PassEnded(self, self._computed, prefilled, self._dispatch_ids, seconds)
        self._computed, self._dispatch_ids = [0] * len(self.units), []
        self._owner.reported(report)
