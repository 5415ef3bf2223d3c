"""The gateway towards its cluster: the core, and what carries out what the core orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headway.console.recent import RecentRequests
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    Release,
    Submit,
    WorkersMissing,
)
from headway.core.gateway.stream_ids import StreamIds
from headway.errors import HeadwayError
from headway.life.moments import MomentKind
from headway.messages import CancelStream
from headway.request import Request
from services.gateway.config import GatewayConfig
from services.gateway.feedback import Feedback, Feedbacks
from services.gateway.metrics import GatewayMetrics
from services.gateway.model_loading import core_settings
from services.gateway.outputs import Output, Outputs
from services.gateway.readiness import Readiness
from services.gateway.scheduler_link import SchedulerLink
from services.gateway.served_model import ServedModels
from services.gateway.token_sink import TokenSink
from services.runtime.driver import Driver
from services.runtime.failpoints import failpoint
from services.runtime.membership import NONCE_DIGEST
from services.runtime.server import GrpcServer
from services.runtime.service import STOP_GRACE, Runtime


class ClusterSide:
    """The core, its streams to the scheduler and from the workers, and the outputs it feeds.

    ``ended`` hears of each output that is over, ``unexpected`` of a bug.
    """

    def __init__(
        self,
        runtime: Runtime[GatewayConfig],
        models: ServedModels,
        sink_server: GrpcServer,
        metrics: GatewayMetrics,
        recent: RecentRequests,
        ended: Callable[[Output, str], None],
        unexpected: Callable[[Exception, str], None],
    ) -> None:
        config, store, self._now = runtime.config, runtime.store, runtime.clock.now
        self._store, self._log, self._server = store, runtime.log, runtime.server
        self._metrics, self._recent, self._sink_server = metrics, recent, sink_server
        self.sink_address = sink_server.bind()
        """The address to which workers send tokens."""
        self.core = GatewayCore(
            config.service_id,
            self.sink_address,
            core_settings(config, models),
            draw_stream_id=StreamIds(runtime.machine.draw(32)),
        )
        self._driver = Driver(self.core, self._perform, runtime.clock)
        post = self._driver.post
        self.link = SchedulerLink(config, self.sink_address, store, post, self._now)
        self.readiness = Readiness(
            store,
            lambda: self.link.connected,
            runtime.server.set_ready,
            lambda reasons: post(WorkersMissing(reasons)),
            () if models.only else models.names,
        )
        self.sink = TokenSink(post, self._find_digest, self._now)
        sink_server.add(self.sink)
        self.feedback = Feedbacks(
            partial(Feedback, config, store=store, metrics=metrics, now=self._now),
            models.names,
            lambda: self.core.num_burst_tokens,
        )
        observe, release = self.feedback.observe, lambda request_id: post(Release(request_id))
        self.outputs = Outputs(metrics, release, observe, unexpected, self._now, ended)
        self._performers: Mapping[type, Callable[[Any], None]] = {
            Deliver: self._deliver,
            CancelTokens: lambda action: self.sink.cancel(action.worker_id, action.stream_ids),
            Fail: self._fail,
            Request: self._hand_over,
            CancelStream: self.link.send,
        }

    async def start(self) -> None:
        """Let workers in and follow the scheduler."""
        await self._sink_server.start()
        await self._sink_server.set_serving(True)
        await self._server.set_ready(False)
        self.link.start()
        self.readiness.start()
        self.feedback.start()

    async def stop(self) -> None:
        """End every stream."""
        self.sink.close()
        await self.feedback.stop()
        self.readiness.stop()
        await self.link.stop()
        await self._sink_server.stop(STOP_GRACE)
        self._driver.close()

    def submit(self, submit: Submit) -> None:
        """Hand a client's request to the core."""
        self._recent.arrived()
        request = submit.request
        self.feedback.arrived(request.model, len(request.prompt_token_ids), request.standing)
        self._driver.post(submit)

    def _perform(self, action: GatewayAction) -> None:
        self._metrics.performed(action)
        self._performers[type(action)](action)

    def _deliver(self, action: Deliver) -> None:
        failpoint("gateway.tokens.taken")
        self.feedback.produced(action.deliveries, self.outputs.model_of)
        self._recent.produced(len(action.deliveries))
        self.outputs.deliver(action.deliveries, self._now())

    def _fail(self, action: Fail) -> None:
        request_id, error = action.request_id, action.error
        self._log.info(
            "request_failed", request_id=request_id, code=error.code.value, error=error.message
        )
        self.outputs.fail(request_id, error)

    def _hand_over(self, request: Request) -> None:
        reason = self._why_again(request.request_id) if request.attempt else None
        if reason is not None:
            self._log.info(
                "request_resubmitted",
                request_id=request.request_id,
                attempt=request.attempt,
                num_output_tokens=len(request.output_token_ids),
                reason=reason,
            )
        self.link.send(request)
        failpoint("gateway.request.handed")

    def _why_again(self, request_id: str) -> str | None:
        """Return why its last attempt was lost, "" where no life says; None: it was not.

        Then a new leader is told of it anew.
        """
        life = self.core.lives.find(request_id, self._now())
        moments = () if life is None else life.moments[:-1]  # the last: it is sent now
        for moment in reversed(moments):
            if moment.kind in (MomentKind.LOST, MomentKind.SENT):
                return moment.cause if moment.kind is MomentKind.LOST else None
        return ""

    async def _find_digest(self, worker_id: str) -> str:
        """Return the digest of a worker's nonce, "" where the store does not say."""
        try:
            members = await self._store.members("worker")
        except HeadwayError:
            return ""
        digests = (m.detail.get(NONCE_DIGEST, "") for m in members if m.member_id == worker_id)
        return next(digests, "")
