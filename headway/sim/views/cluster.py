"""A cluster of instances under the real policies: who goes where, and what each client sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, isfinite

from headway.cluster import Role
from headway.core.scheduler.admission import wanted_reports
from headway.cost.costs import Costs
from headway.cost.velocity import LimitsInForce
from headway.errors import Code, HeadwayError
from headway.policies import registry
from headway.policies.batching import Batching
from headway.policies.batching.gamma_ada import GammaAda
from headway.policies.burst import Burst
from headway.policies.readers import teach
from headway.request import StreamKey
from headway.sim.clients import SimRequest
from headway.sim.predictor import LearnedLengths
from headway.sim.records import Record
from headway.sim.spec import ClusterSpec
from headway.sim.views.agenda import Agenda
from headway.sim.views.dispatch import Dispatcher
from headway.sim.views.instance import PassEnded, ViewInstance
from headway.sim.views.links import SharedLinks
from headway.sim.views.load import LoadView
from headway.sim.views.moves import ViewMover, Wires
from headway.sim.views.outlook import ExpectedLengths, Outlook
from headway.sim.views.placement import Placer
from headway.sim.views.sizes import LargestRequests
from headway.sim.views.unit import ViewRequest
from headway.sim.worker import InstanceSpec

FIRST_COME = "fcfs"
"""The batching policy whose order is known without asking."""


class ViewCluster:
    """Instances, the scheduler's policies, and the time; ``ended`` is told of every request."""

    def __init__(self, spec: ClusterSpec, ended: Callable[[Record], None]) -> None:
        hops, settings = spec.network.costs, spec.gateway
        self._limits = LimitsInForce(spec.scheduler.limits)
        self._spec = spec
        self._ended = ended
        self._submitted_after = hops.gateway + hops.submit
        self._report, self._token = hops.report, hops.token
        self.agenda = Agenda()
        self.ended_at = 0.0
        self._open: dict[StreamKey, ViewRequest] = {}
        self._sizes = LargestRequests()
        round_trip = hops.report + hops.dispatch
        self._dispatcher = Dispatcher(spec.scheduler, self.agenda, hops.dispatch, round_trip)
        links = SharedLinks(self.agenda, spec.network.bytes_per_s, spec.network.latency)
        scheduler, network = spec.scheduler, spec.network
        self._outlook: Outlook | None = None
        self._mover: ViewMover | None = None
        if isfinite(wanted_reports(scheduler).load_interval):
            estimation = spec.estimation.make() if spec.estimation is not None else None
            self._outlook = Outlook(scheduler, ExpectedLengths(estimation))
        self._placer = Placer(scheduler, self.agenda, network, links, self._outlook, self._landed)
        if self._outlook is not None and scheduler.rescheduling != "none":
            arrived, costs = self._placer.arrived, network.costs
            wires = Wires(network.latency, costs.dispatch, links, arrived)
            rounds = spec.worker.move_rounds
            self._mover = ViewMover(scheduler, rounds, self.agenda, self._outlook, wires)
        self._fit = scheduler.gamma_fit.fit() if scheduler.gamma_fit is not None else None
        self._policies: list[Batching] = []
        self._lengths = LearnedLengths(self.agenda)
        burst: Burst = registry.make("burst", settings.burst, **settings.burst_params)
        self._burst = burst if burst.labels else None
        self.instances: list[ViewInstance] = []
        self._num_jobs = 0
        for kind, count in spec.instances:
            for _ in range(count):
                self.start(kind)

    def start(self, kind: InstanceSpec) -> None:
        """Add an instance that runs."""
        worker_id = f"{kind.role.value}-{len(self.instances) + 1}"
        instance = ViewInstance(worker_id, kind, self._spec.worker, self.agenda, self, self._limits)
        self.instances.append(instance)
        if self._spec.batching.name != FIRST_COME:
            policy: Batching = self._spec.batching.make()
            teach(policy, Costs.of([(Role.UNIFIED, kind.deployed)]))
            instance.rank_by(self._spec.batching.name, policy)
            self._policies.append(policy)
        if self._outlook is not None:
            self._outlook.join(instance)
        if self._mover is not None:
            self._mover.join(instance)
        if kind.role.prefills:
            self._dispatcher.join(instance)
        self._placer.join(instance)
        self._sizes.join(instance)

    @property
    def num_moves(self) -> int:
        """Moves of running requests so far."""
        return self._mover.num_moves if self._mover is not None else 0

    # --- requests ---------------------------------------------------------------------

    def run(self, requests: Iterable[SimRequest], until: float = inf) -> None:
        """Serve requests, which come in order of arrival, to the last one's end.

        Who could never be served, and who has not ended ``until`` then, is lost.
        """
        agenda, delay = self.agenda, self._submitted_after
        for request in requests:
            at = request.arrival_at + delay
            if at > until:
                break
            agenda.run(at)
            agenda.now = at
            self._arrived(request)
        agenda.run(until)
        for job in list(self._open.values()):
            self._lose(job, "it waits for what no instance does")

    def _arrived(self, request: SimRequest) -> None:
        if request.prefix_hashes:
            message = (
                f"request {request.request_id} names blocks of its prompt that others share; the "
                "fidelity `policies` caches none: simulate this with --fidelity cores"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="fidelity")
        self._num_jobs += 1
        expected = self._lengths.expected(request.num_prompt_tokens)
        job = ViewRequest(request, self._num_jobs, expected)
        if self._burst is not None and not request.standing.yields:  # that makes no burst
            label = self._burst.arrived(request.num_prompt_tokens, now=request.arrival_at)
            job.is_burst = label.is_burst
        service = request.standing.service
        if service is not None and not service.yields:
            self._limits.promise(service.ttft, service.tpot)
        self._open[job.key] = job
        if why := self._sizes.refusal(job):
            self.ended_at = max(self.ended_at, self.agenda.now)
            self._lose(job, why)
            return
        if self._mover is not None:
            self._mover.wait()
        self._dispatcher.arrived(job)

    def finished(self, job: ViewRequest, at: float) -> None:
        """Close a request whose last token was drawn."""
        request, unit = job.request, job.unit
        assert unit is not None, "it ran on one"
        unit.load.left(job.num_prompt_tokens)
        if unit.view.bucket_counts:
            unit.view.bucket_counts[job.bucket] -= 1
        del self._open[job.key]
        if self._outlook is not None:
            self._outlook.dropped(job, unit)
        if self._fit is not None:
            self._tune(self._fit, job, at)
        self.ended_at = at = at + self._token
        self._lengths.finished(request.num_prompt_tokens, request.num_output_tokens)
        self._ended(
            Record(
                request.request_id,
                request.arrival_at,
                request.num_prompt_tokens,
                request.num_reasoning_tokens,
                request.num_output_tokens,
                [],
                job.first_at + self._token,
                job.answer_at + self._token,
                at,
                request.num_output_tokens,
                True,
                "",
                request.is_read,
            )
        )

    def _lose(self, job: ViewRequest, why: str) -> None:
        """Close a request that is refused, or that nobody serves."""
        del self._open[job.key]
        asked = job.request
        lengths = asked.num_prompt_tokens, asked.num_reasoning_tokens, asked.num_output_tokens
        record = Record(asked.request_id, asked.arrival_at, *lengths, is_read=asked.is_read)
        record.num_tokens, record.error = job.done, why
        if job.done:
            record.first_token_at = job.first_at + self._token
        self._ended(record)

    def _tune(self, fit: GammaAda, job: ViewRequest, at: float) -> None:
        """Fit γ to what requests have waited, and tell the instances' policies."""
        served = job.served + at if job.done > 1 else job.served
        if fit.completed(at + self._report - job.arrival_at, served):
            for policy in self._policies:
                policy.tune(fit.gamma)
            self._dispatcher.tune(fit.gamma)

    # --- reports ----------------------------------------------------------------------

    def reported(self, report: PassEnded) -> None:
        """Let the scheduler hear of a pass that ends now."""
        self.agenda.at(self.agenda.now + self._report, self._hear, report)

    def _hear(self, report: PassEnded) -> None:
        self._dispatcher.ended(report)
        placer = self._placer
        for job in report.prefilled:
            placer.waiting[job.key] = job
            if self._outlook is not None:
                self._outlook.expect(job)
        if placer.waiting:
            placer.place()
        if self._dispatcher.window:
            self._dispatcher.dispatch()

    def _landed(self, job: ViewRequest, source: LoadView) -> None:
        """Note that a request decodes elsewhere now."""
        unit = job.unit
        assert unit is not None, "it has arrived at one"
        source.left(job.num_prompt_tokens)
        unit.load.num_outstanding += 1
        if self._mover is not None:
            self._mover.wait()
        self.retry_waiting()

    def retry_waiting(self) -> None:
        """Try those who wait again, once the scheduler has heard of it."""
        if self._placer.waiting or self._dispatcher.window:
            self.agenda.at(self.agenda.now + self._report, self._try_again, None)

    def _try_again(self, _: None) -> None:
        if self._placer.waiting:
            self._placer.place()
        if self._dispatcher.window:
            self._dispatcher.dispatch()
