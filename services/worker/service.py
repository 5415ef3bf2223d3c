"""The worker: RPCs into events, actions into passes, tokens, transfers and reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    AskPredictor,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    WorkerAction,
    WorkerEvent,
)
from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import ChangeRole, Drain, EndForward, Tuned
from headway.request import FinishReason
from protos import worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.driver import Driver
from services.runtime.reasoning import find_markers
from services.runtime.service import Runtime
from services.worker.config import WorkerConfig
from services.worker.control import ControlSession
from services.worker.engine_thread import EngineThread
from services.worker.kv_receiver import KvReceiver
from services.worker.kv_sender import KvSender
from services.worker.loading import load_backend
from services.worker.metrics import PredictionMetrics, WorkerMetrics
from services.worker.pass_record import PassRecord
from services.worker.predictor_link import PredictorLink
from services.worker.standby import Standby
from services.worker.token_link import TokenLinks

_FAREWELL = 0.1
"""Seconds until a gateway has heard where a request has moved, which would else look lost here."""


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """The shell around :class:`WorkerCore`."""

    def __init__(self, runtime: Runtime[WorkerConfig]) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._log = runtime.log
        self._metrics = WorkerMetrics(runtime.metrics)
        self._ready = False
        self._role = Role(self._config.role)
        self._control = ControlSession(self._post)
        self._tokens = TokenLinks(self._config, self._post)
        self.standby = Standby(runtime) if runtime.config.standby else None

    @property
    def model_name(self) -> str:
        """The name that requests use."""
        return self._config.model_name or Path(self._config.model).name

    def member(self) -> Mapping[str, Any]:
        """What the membership says of this worker."""
        return {"role": self._role.value, "model": self.model_name}

    # --- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, then take work."""
        config = self._config
        backend = await asyncio.to_thread(load_backend, config)
        reasoning = await asyncio.to_thread(
            find_markers, config.model, config.end_of_reasoning, config.start_of_reasoning
        )
        if self.standby is not None:
            config = self._config = await self.standby.role()
            self._role = Role(config.role)
        info = WorkerInfo(
            worker_id=config.service_id,
            address=self._runtime.address,
            role=Role(config.role),
            model=self.model_name,
            num_units=config.dp,
            chunk_tokens=config.chunk_tokens,
            block_size=config.block_size,
            num_blocks=backend.info.num_blocks // config.dp,
            max_model_len=config.max_model_len or backend.info.max_model_len,
            kv_bytes_per_token=backend.info.kv_bytes_per_token,
        )
        _refuse_a_pool_too_small(info)
        policies = config.policies()
        settings = WorkerSettings(
            watermark=config.watermark,
            linger=config.linger if policies.lingers else 0.0,
            max_running=config.max_running,
            end_of_reasoning=reasoning.end,
            start_of_reasoning=reasoning.start,
            reader_pace=config.reader_pace or policies.reader_pace,
            prefix_caching=config.prefix_caching,
            predict_every=config.predict_every,
            move_rounds=config.move_rounds,
            runs_ahead=config.async_scheduling,
            swaps_beside=backend.info.swaps_beside,
            host_tokens=backend.info.num_host_blocks // config.dp * config.block_size,
        )
        self._core = WorkerCore(
            info,
            backend.info.eos_token_ids,
            policies.make_batching(),
            settings,
            estimation=policies.make_estimation(),
        )
        self._driver: Driver[WorkerEvent, WorkerAction] = Driver(
            self._core, self._perform, self._runtime.clock
        )
        self._record = PassRecord(config.record_passes, info) if config.record_passes else None
        self._engine = EngineThread(backend, self._post)
        self._sender = KvSender(config, backend, self._post, self._metrics)
        self._receiver = KvReceiver(config.service_id, backend, self._post)
        self._predictor = PredictorLink(
            config,
            self.model_name,
            self._runtime.store,
            self._post,
            PredictionMetrics(self._runtime.metrics),
        )
        self._ready = True
        if config.predict_every:
            self._predictor.start()
        self._log.info(
            "worker_ready",
            role=config.role,
            model=self.model_name,
            dtype=backend.info.dtype,
            kernels=backend.info.kernels,
            num_blocks=info.num_blocks,
            max_model_len=info.max_model_len,
        )

    async def drain(self) -> None:
        """Tell the scheduler, then wait until nothing is held."""
        if not self._ready:
            return
        self._post(Drain())
        while self._core.num_held:  # noqa: ASYNC110 (the core knows no asyncio events)
            await asyncio.sleep(0.02)
        await asyncio.sleep(_FAREWELL)

    async def stop(self) -> None:
        """End streams, transfers and the engine's thread."""
        if not self._ready:
            return
        self._ready = False
        await self._predictor.stop()
        await self._tokens.close()
        await self._sender.close()
        self._driver.close()
        await asyncio.to_thread(self._engine.close)
        if self._record is not None:
            self._record.close()

    # --- events and actions -----------------------------------------------------------

    def _post(self, event: WorkerEvent) -> None:
        if isinstance(event, Tuned):
            self._metrics.tuned(event)
        if self._ready:
            if self._record is not None and isinstance(event, PassResult):
                self._record.ended(time.perf_counter())
            self._driver.post(event)

    def _perform(self, action: WorkerAction) -> None:
        if isinstance(action, ForwardPass):
            self._metrics.pass_started(action)
            if self._record is not None:
                self._record.started(action, time.perf_counter())
            self._engine.start(action)
        elif isinstance(action, SendTokens):
            self._tokens.send(action)
        elif isinstance(action, AskPredictor):
            self._predictor.ask(action)
        elif isinstance(action, StartTransfer):
            self._sender.start(action)
        elif isinstance(action, StopTransfer):
            self._sender.stop(action.key)
        elif isinstance(action, AcceptKv | AcknowledgeKv | RefuseKv):
            self._receiver.answer(action)
        else:
            if isinstance(action, EndForward):
                self._metrics.reported(action)
                self._metrics.prefixes(self._core.prefix_counts)
                self._metrics.preempted(self._core.preemptions)
                self._predictor.ended(action.finished)
                self._log_cut_short(action)
            self._control.report(action)

    def _log_cut_short(self, report: EndForward) -> None:
        for finished in report.finished:
            if finished.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
                self._log.info(
                    f"request_{finished.finish_reason.value}",
                    gateway_id=finished.key.gateway_id,
                    stream_id=finished.key.stream_id,
                    num_free_blocks=report.loads[finished.unit].num_free_blocks,
                )

    # --- RPCs -------------------------------------------------------------------------

    async def Control(  # noqa: N802 (the proto's name)
        self,
        request_iterator: AsyncIterator[worker_pb2.SchedulerToWorker],
        context: grpc.aio.ServicerContext[
            worker_pb2.SchedulerToWorker, worker_pb2.WorkerToScheduler
        ],
    ) -> AsyncIterator[worker_pb2.WorkerToScheduler]:
        """See ``protos/worker.proto``."""
        try:
            self._refuse_while_loading()
            async for report in self._control.serve(aiter(request_iterator)):
                yield report
        except HeadwayError as error:
            await wire.abort(context, error)

    async def TransferKv(  # noqa: N802 (the proto's name)
        self,
        request_iterator: AsyncIterator[worker_pb2.KvChunk],
        context: grpc.aio.ServicerContext[worker_pb2.KvChunk, worker_pb2.KvReceipt],
    ) -> worker_pb2.KvReceipt:
        """See ``protos/worker.proto``."""
        try:
            self._refuse_while_loading()
            return await self._receiver.receive(aiter(request_iterator))
        except HeadwayError as error:
            await wire.abort(context, error)
            raise

    async def SetRole(  # noqa: N802 (the proto's name)
        self,
        request: worker_pb2.SetRoleRequest,
        context: grpc.aio.ServicerContext[worker_pb2.SetRoleRequest, worker_pb2.SetRoleReply],
    ) -> worker_pb2.SetRoleReply:
        """See ``protos/worker.proto``."""
        try:
            self._refuse_while_loading()
            await self._set_role(wire.SET_ROLE.unpack(request).role)
        except HeadwayError as error:
            await wire.abort(context, error)
        return worker_pb2.SetRoleReply()

    async def _set_role(self, role: Role) -> None:
        if role is self._role:
            return
        self._log.info("role_changed", before=self._role.value, after=role.value)
        self._role = role
        self._post(ChangeRole(role))
        if self._runtime.lease is not None:
            await self._runtime.lease.change(role.value)

    def _refuse_while_loading(self) -> None:
        if not self._ready:
            raise HeadwayError(Code.UNAVAILABLE, "the worker is starting or stopping: try again")


def _refuse_a_pool_too_small(info: WorkerInfo) -> None:
    capacity = info.num_blocks * info.block_size
    if capacity < info.max_model_len:
        raise HeadwayError(
            Code.INVALID_ARGUMENT,
            f"the KV pool holds {capacity} tokens per DP unit; one request of max_model_len "
            f"needs {info.max_model_len}: raise kv_cache_gib or num_blocks, or lower max_model_len",
        )
