"""One term of leadership: a core, its driver, and its links to other services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Decision,
    Elected,
    Note,
    Persist,
    SchedulerAction,
    SchedulerEvent,
    SendToGateway,
    SendToWorker,
    WorkerGone,
)
from headway.core.scheduler.picture import SchedulerStatus
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import ControlHello, Dispatch, Handoff, Lost, Rejected, ToGateway
from services.runtime.driver import Driver
from services.runtime.failpoints import failpoint
from services.runtime.logs import get_logger
from services.runtime.membership import MembershipWatch
from services.runtime.service import Runtime
from services.runtime.store import Member
from services.scheduler.config import SchedulerConfig
from services.scheduler.fleet_link import FleetLink
from services.scheduler.gateway_link import MOST_QUEUED, GatewayLinks
from services.scheduler.journal import Journal
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.records import unpack_learned, unpack_requests
from services.scheduler.worker_link import WorkerLink

_PICTURE_INTERVAL = 0.2


class Term:
    """A term, from the election until the lead is lost.

    The next term starts from this one's records and from the reports of workers and gateways.
    """

    def __init__(
        self,
        runtime: Runtime[SchedulerConfig],
        settings: SchedulerSettings,
        gateways: GatewayLinks,
        metrics: SchedulerMetrics,
        fencing_token: int,
        resign: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._gateways = gateways
        self._metrics = metrics
        self._fencing_token = fencing_token
        self._hello = ControlHello(
            runtime.config.service_id, fencing_token, wanted_reports(settings, has_choice=False)
        )
        self._core = SchedulerCore(settings)
        self._journal = Journal(runtime.store, fencing_token, metrics.wrote)
        self._driver: Driver[SchedulerEvent, SchedulerAction] = Driver(
            self._core, self._perform, runtime.clock
        )
        self._links: dict[str, WorkerLink] = {}
        self._refusing: set[str] = set()
        self._resign = resign
        self._closing: set[asyncio.Task[None]] = set()
        self._ended = False
        self.has_begun = False
        # Metrics are scraped from another thread: it gets a snapshot, never the core.
        self.status: SchedulerStatus = self._core.status()
        self._picture: asyncio.TimerHandle | None = None
        self._watch = MembershipWatch(runtime.store, "worker", self._joined, self._left)
        self._fleet = FleetLink(
            runtime.config, runtime.store, lambda: self._core.fleets(now=runtime.clock.now())
        )
        self._log = get_logger()

    @property
    def num_closed_links(self) -> int:
        """Workers with a lease that there is no stream to; any thread may ask."""
        return sum(not link.is_open for link in tuple(self._links.values()))

    async def begin(self) -> None:
        """Read the members, then follow changes."""
        store = self._runtime.store
        members, journal, store_now = await asyncio.gather(
            store.members("worker"), store.read_journal(), store.now()
        )
        saved, learned = unpack_requests(journal[0]), unpack_learned(journal[1])
        ahead = self._journal.ahead = store_now - self._runtime.clock.now()
        num_skipped = sum(map(len, journal)) - len(saved) - len(learned)
        if num_skipped:
            store.unreadable("the journal", f"{num_skipped} records, skipped")
        self._log.info("term_begins", num_workers=len(members), num_requests=len(saved))
        worker_ids = tuple(member.member_id for member in members)
        by_our_clock = tuple(each.later(-ahead) for each in saved)
        self._post(Elected(self._fencing_token, worker_ids, by_our_clock, learned))
        self._gateways.open(self._post, lambda: self._core.decisions, self._core.pictures.draw)
        self.has_begun = True
        self._watch.start()
        self._fleet.start()
        self._take_picture()

    def _take_picture(self) -> None:
        self.status = self._core.status()
        loop = asyncio.get_running_loop()
        self._picture = loop.call_later(_PICTURE_INTERVAL, self._take_picture)

    async def end(self) -> None:
        """Stop all communication."""
        self._ended = True
        if self._picture is not None:
            self._picture.cancel()
        self._gateways.close()
        await self._watch.stop()
        await self._fleet.close()
        self._driver.close()
        await self._journal.close()
        links = [link.close() for link in self._links.values()]
        await asyncio.gather(*links, *self._closing)

    def _post(self, event: SchedulerEvent) -> None:
        if not self._ended:
            self._driver.post(event)

    # --- workers ----------------------------------------------------------------------

    def _joined(self, member: Member) -> None:
        self._left(member)
        self._links[member.member_id] = WorkerLink(
            self._config,
            member.member_id,
            member.address,
            self._hello,
            self._post,
            self._runtime.clock.now,
            max_queued=MOST_QUEUED,
            refused=self._refused,
        )

    def _refused(self, worker_id: str, is_refused: bool) -> None:
        """Resign if every worker has seen a leader with a newer fencing token."""
        if is_refused:
            self._refusing.add(worker_id)
        else:
            self._refusing.discard(worker_id)
        if self._links and self._refusing >= self._links.keys():
            self._log.error("refused_by_all_workers", num_workers=len(self._links))
            self._resign("all workers refuse its fencing token")

    def _left(self, member: Member) -> None:
        """Close the link of a worker whose lease has expired, whatever the state of its stream."""
        link = self._links.pop(member.member_id, None)
        self._refusing.discard(member.member_id)
        if link is None:
            return
        task = asyncio.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        reason = f"worker {member.member_id} has left the cluster"
        self._post(WorkerGone(member.member_id, reason))

    # --- actions ----------------------------------------------------------------------

    def _perform(self, action: SchedulerAction) -> None:
        self._metrics.performed(action)
        match action:
            case SendToWorker(worker_id, message):
                link = self._links.get(worker_id)
                if link is not None:
                    link.send(message)
                    failpoint("scheduler.order.sent")
                self._log_order(worker_id, message)
            case SendToGateway(gateway_id, message):
                self._gateways.send(gateway_id, message)
                self._log_answer(message)
            case Persist():
                self._journal.write(action)
            case Note():
                fields = {"worker_id": action.worker_id, "request_id": action.request_id}
                known = {name: value for name, value in fields.items() if value}
                self._log.warning(action.event, detail=action.detail, **known)
            case Decision():
                self._log_decision(action)

    def _log_order(self, worker_id: str, order: object) -> None:
        if isinstance(order, Dispatch):
            num_requests = sum(len(batch.requests) for batch in order.batches)
            self._log.debug(
                "dispatched",
                worker_id=worker_id,
                dispatch_id=order.dispatch_id,
                num_requests=num_requests,
            )
        elif isinstance(order, Handoff):
            self._log.debug(
                "handoff",
                worker_id=worker_id,
                stream_id=order.key.stream_id,
                target_worker_id=order.target_worker_id,
                target_unit=order.target_unit,
            )

    def _log_answer(self, answer: ToGateway) -> None:
        if isinstance(answer, Rejected):
            self._log.info(
                "rejected",
                gateway_id=answer.key.gateway_id,
                stream_id=answer.key.stream_id,
                code=answer.code.value,
                reason=answer.message,
            )
        elif isinstance(answer, Lost) and answer.keys:
            self._log.warning("lost", num_requests=len(answer.keys), reason=answer.reason)

    def _log_decision(self, decision: Decision) -> None:
        for chosen in decision.chosen:
            self._log.debug(
                "decided",
                question=decision.question,
                rule=decision.rule,
                request_id=chosen.request_id,
                worker_id=chosen.unit.worker_id,
                unit=chosen.unit.unit,
                score=chosen.score,
                waited=round(chosen.waited, 6),
            )
