"""Prefilled requests: their decode units, and their KV on the way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headway.cluster import UnitId
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.buckets import NUM_BUCKETS
from headway.policies import registry
from headway.policies.placement import DecodeUnit, Placement
from headway.policies.readers import teach
from headway.request import StreamKey
from headway.sim.network import NetworkParams
from headway.sim.views.agenda import Agenda
from headway.sim.views.instance import ViewInstance
from headway.sim.views.links import SharedLinks
from headway.sim.views.load import LoadView
from headway.sim.views.outlook import Outlook
from headway.sim.views.unit import Unit, ViewRequest


class _Arrival(NamedTuple):
    job: ViewRequest
    source: Unit
    target: Unit


class Placer:
    """A placer of prefilled requests; who finds no room waits for the next report."""

    def __init__(
        self,
        settings: SchedulerSettings,
        agenda: Agenda,
        network: NetworkParams,
        links: SharedLinks,
        outlook: Outlook | None,
        landed: Callable[[ViewRequest, LoadView], None],
    ) -> None:
        self._landed = landed
        self._outlook = outlook
        self._links = links
        self.waiting: dict[StreamKey, ViewRequest] = {}
        self._agenda = agenda
        self._offer_delay = network.costs.dispatch + network.latency
        self._rest = settings.moves.rest
        self._placement: Placement = registry.make(
            "placement", settings.placement, **settings.placement_params
        )
        teach(self._placement, settings.costs)
        self._units: dict[UnitId, tuple[ViewInstance, Unit]] = {}
        self._views: list[DecodeUnit] = []
        self._by_id: dict[str, ViewInstance] = {}
        self._instances: list[ViewInstance] = []

    def join(self, instance: ViewInstance) -> None:
        """Hand over from it from now on, and place requests there if it decodes."""
        self._by_id[instance.info.worker_id] = instance
        if not instance.info.role.decodes:
            return
        self._instances.append(instance)
        for unit in instance.units:
            self._units[unit.view.unit] = instance, unit
            if self._placement.reads_buckets:
                unit.view.bucket_counts = [0] * NUM_BUCKETS
        self._views = [unit.view for _, (_, unit) in sorted(self._units.items())]

    def place(self) -> None:
        """Find units for waiting requests."""
        now = self._agenda.now
        for instance in self._instances:
            if now >= instance.report_at:
                instance.look(now)
        waiting, outlook = self.waiting, self._outlook
        if outlook is not None and self._placement.reads_ahead:
            outlook.look(now)
            outlook.fill(self._views)
        for choice in self._placement.place(list(waiting.values()), self._views):
            job = choice.request
            del waiting[job.key]
            self._send(job, *self._units[choice.unit])

    def _send(self, job: ViewRequest, instance: ViewInstance, unit: Unit) -> None:
        """Order the handoff; the KV crosses both links, or the target refuses it."""
        source = job.unit
        assert source is not None, "it was prefilled on one"
        offered_at = self._agenda.now + self._offer_delay
        if not unit.reserve(job):
            self.waiting[job.key] = job
            job.barred = (*job.barred, unit.view.unit)
            unit.refresh()
            self._agenda.at(offered_at + self._rest, self._try_again, job)
            return
        if self._outlook is not None:
            self._outlook.ordered(job, unit)
        size = unit.memory.footprint(job.num_tokens - 1) * instance.info.kv_bytes_per_token
        sender, target = source.load.worker_id, instance.info.worker_id
        self._links.send(
            sender, target, size, offered_at, self._arrive, _Arrival(job, source, unit)
        )

    def _arrive(self, arrival: _Arrival) -> None:
        self.arrived(*arrival)

    def arrived(self, job: ViewRequest, source: Unit, unit: Unit) -> None:
        """Let a request whose KV has come decode on a unit from now on."""
        source.release(job)
        source.refresh()
        if source.queue:  # a prompt may have waited for this memory
            self._by_id[source.load.worker_id].changed(self._agenda.now)
        unit.arrived(job)
        if self._outlook is not None:
            self._outlook.landed(job)
        self._by_id[unit.load.worker_id].changed(self._agenda.now)
        self._landed(job, source.load)

    def _try_again(self, job: ViewRequest) -> None:
        job.barred = ()
        if self.waiting:
            self.place()
