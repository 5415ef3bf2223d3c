"""A loaded worker: feeds events to its core, and performs actions on its engine and links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from headway.cluster import Role, WorkerInfo
from headway.core.reasoning import Markers
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    AskPredictor,
    EngineAbort,
    EngineAdd,
    EngineTune,
    PlanningAction,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    TellKv,
    WorkerEvent,
)
from headway.core.worker.planning_engine import PlanningEngineCore
from headway.engine import Backend, EngineInfo, EngineStepped, KvAccess, PlanningEngine
from headway.errors import Code, HeadwayError, invalid
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import ChangeRole, Drain, EndForward, FromWorker
from headway.request import FinishReason
from services.runtime.driver import Driver
from services.runtime.essential import essential
from services.runtime.membership import digest_of
from services.runtime.service import Runtime
from services.worker.config import WorkerConfig
from services.worker.control import ControlSession
from services.worker.engine_thread import EngineThread
from services.worker.engines import Engine
from services.worker.kv_nixl import open_nixl
from services.worker.kv_receiver import KvReceiver
from services.worker.kv_sender import KvSender
from services.worker.metrics import PredictionMetrics, WorkerMetrics
from services.worker.no_kv import NoKv
from services.worker.pass_record import PassRecord
from services.worker.predictor_link import PredictorLink
from services.worker.token_link import TokenLinks

if TYPE_CHECKING:
    from services.worker.kv_events import KvEvents

_FAREWELL, _IDLE_FAREWELL = 2.0, 0.1
"""Seconds for a gateway to learn where a request has moved before it counts it as lost."""


class WorkerService:
    """The shell around a :class:`WorkerCore`, from its construction to ``stop``."""

    def __init__(
        self,
        runtime: Runtime[WorkerConfig],
        config: WorkerConfig,
        engine: Engine,
        reasoning: Markers,
        nonce: str,
    ) -> None:
        """Take the engine over; HeadwayError for settings that it cannot meet.

        ``nonce`` tells this process from others that claim its name.
        """
        self._runtime = runtime
        self._log = runtime.log
        info = _info(config, runtime.address, engine.info, digest_of(nonce))
        self.role = info.role
        self._record = PassRecord(config.record_passes, info) if config.record_passes else None
        self._core = _core(config, info, engine, reasoning)
        self._metrics = WorkerMetrics(
            *(runtime.metrics, self._core, info.model, info.num_blocks, info.block_size),
            num_adapters=len(info.adapters),
        )
        self._driver: Driver[WorkerEvent, PlanningAction] = Driver(
            self._core, self._perform, runtime.clock
        )
        self._kv_events = _publish_kv(
            config, engine, runtime.clock.now
        )  # may refuse: nothing runs yet
        kv: KvAccess
        self._engine: EngineThread | PlanningEngine
        if isinstance(engine, PlanningEngine):
            self._engine, kv = engine, NoKv(engine.info)
            engine.start(self._post)
        else:
            self._engine, kv = self._thread_of(engine, config.least_pass_time), engine
        self.control = ControlSession(
            self._post, runtime.clock.now, worker_id=runtime.config.service_id
        )
        self._nixl = open_nixl(config, kv)
        self.receiver = KvReceiver(
            kv, self._post, runtime.clock.now, self._nixl, patience=config.transfer_timeout
        )
        self._tokens = TokenLinks(
            config, nonce, self._post, runtime.clock.now, self._metrics.lost_gateway
        )
        self._sender = KvSender(
            config, kv, self._post, self._metrics, runtime.clock.now, self._nixl
        )
        asked = PredictionMetrics(runtime.metrics)
        self._predictor = PredictorLink(config, info.model, runtime.store, self._post, asked)
        self._handlers = self._make_handlers()
        self._watching = essential(
            self._engine.watch(config.hang_timeout), "engine watch", may_return=True
        )
        if config.predict_every and not isinstance(engine, PlanningEngine):
            self._predictor.start()
        self._log.info(
            "worker_ready",
            role=config.role,
            model=info.model,
            batching=config.chosen().batching,
            engine=config.engine,
            dtype=engine.info.dtype,
            kernels=engine.info.kernels,
            num_blocks=info.num_blocks,
            max_model_len=info.max_model_len,
        )
        if isinstance(engine, PlanningEngine):
            self._log.info("engine_plans_itself", lost="; ".join(engine.losses))

    def _thread_of(self, engine: Backend, least_pass_time: float) -> EngineThread:
        machine, clock = self._runtime.machine, self._runtime.clock
        return EngineThread(
            engine, self._post, least_pass_time, thread=machine.thread, now=clock.now
        )

    def _make_handlers(self) -> Mapping[type, Callable[[Any], None]]:
        engine = self._engine
        runs: dict[type, Callable[[Any], None]] = {ForwardPass: self._start_pass}
        if not isinstance(engine, EngineThread):
            runs = {
                EngineAdd: lambda order: engine.add(order.request, order.priority),
                EngineAbort: lambda order: engine.abort(order.key),
                EngineTune: lambda order: engine.tune(order.gamma),
            }
        if self._kv_events is not None:
            runs[TellKv] = self._kv_events.publish
        return {
            **runs,
            **dict.fromkeys(get_args(FromWorker), self.control.report),
            **dict.fromkeys((AcceptKv, AcknowledgeKv, RefuseKv), self.receiver.answer),
            EndForward: self._report,
            SendTokens: self._tokens.send,
            AskPredictor: self._predictor.ask,
            StartTransfer: self._sender.start,
            StopTransfer: lambda action: self._sender.stop(action.key),
        }

    async def set_role(self, role: Role) -> None:
        """Serve in another role from now on, and tell the membership."""
        if role is self.role:
            return
        _refuse_role(self._core.info.kv_layout, role)
        self._log.info("role_changed", before=self.role.value, after=role.value)
        self.role = role
        self._post(ChangeRole(role))
        if self._runtime.lease is not None:
            await self._runtime.lease.change(role.value)

    async def drain(self) -> None:
        """Tell the scheduler, then wait until no request is held.

        The token streams stay open for a moment more where requests have left: a gateway that
        does not know yet where they went would take the end of a stream for their loss. What was
        on its way here arrives in that moment, and is waited for, too.
        """
        farewell = _FAREWELL if self._core.num_held else _IDLE_FAREWELL
        self._post(Drain())
        while True:
            while self._core.num_held:  # noqa: ASYNC110 (the core knows no asyncio events)
                await asyncio.sleep(0.02)
            await asyncio.sleep(farewell)
            if not self._core.num_held:
                return
            farewell = _FAREWELL

    async def stop(self) -> None:
        """Stop streams, transfers and the engine's thread."""
        self._driver.close()
        self._watching.cancel()
        await self._predictor.stop()
        await self._tokens.close()
        await self._sender.close()
        if self._nixl is not None:
            await self._nixl.close()
        engine = self._engine
        await (engine.stop() if isinstance(engine, EngineThread) else engine.close())
        if self._kv_events is not None:
            await self._kv_events.close()
        if self._record is not None:
            self._record.close()

    # --- events and actions -----------------------------------------------------------

    def _post(self, event: WorkerEvent) -> None:
        self._metrics.heard(event)
        if self._record is not None:
            if isinstance(event, PassResult):
                self._record.ended(time.perf_counter())
            elif isinstance(event, EngineStepped):
                self._record.stepped(event)
        self._driver.post(event)

    def _perform(self, action: PlanningAction) -> None:
        self._metrics.performed(action)
        self._handlers[type(action)](action)

    def _start_pass(self, forward_pass: ForwardPass) -> None:
        if self._record is not None:
            self._record.started(forward_pass, time.perf_counter())
        assert isinstance(self._engine, EngineThread), "another core plans no passes"
        self._engine.start(forward_pass)

    def _report(self, report: EndForward) -> None:
        self._predictor.ended(report.finished)
        num_free = {load.unit: load.num_free_blocks for load in report.loads}
        for finished in report.finished:
            if finished.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
                self._log.info(
                    f"request_{finished.finish_reason.value}",
                    gateway_id=finished.key.gateway_id,
                    stream_id=finished.key.stream_id,
                    num_free_blocks=num_free.get(finished.unit, 0),  # of none: refused
                )
        self.control.report(report)


def name_of_model(config: WorkerConfig) -> str:
    """Return the name that requests use: the configured one, or the folder's."""
    return config.model_name or Path(config.model).name


def _info(config: WorkerConfig, address: str, engine: EngineInfo, process_id: str) -> WorkerInfo:
    _refuse_role(engine.kv_layout, Role(config.role))
    keeps_prefixes = config.prefix_caching and config.host_prefixes
    info = WorkerInfo(
        worker_id=config.service_id,
        address=address,
        role=Role(config.role),
        model=name_of_model(config),
        num_units=config.dp,
        chunk_tokens=config.chunk_tokens,
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        convertible_chunk_tokens=config.convertible_chunk_tokens,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks // config.dp,
        max_model_len=config.max_model_len or engine.max_model_len,
        kv_bytes_per_token=engine.kv_bytes_per_token,
        kv_layout=engine.kv_layout,
        num_host_blocks=engine.num_host_blocks // config.dp if keeps_prefixes else 0,
        adapters=engine.adapters,
        process_id=process_id,
    )
    capacity = info.num_blocks * info.block_size
    if capacity < info.max_model_len:
        raise HeadwayError(
            Code.INVALID_ARGUMENT,
            f"the KV pool holds {capacity} tokens per DP unit; one request of max_model_len "
            f"needs {info.max_model_len}: raise kv_cache_gib or num_blocks, or lower max_model_len",
        )
    return info


def _refuse_role(kv_layout: str, role: Role) -> None:
    """Raise HeadwayError if requests would have to arrive or leave and the engine moves no KV."""
    if not kv_layout and role is not Role.UNIFIED:
        message = f"role is {role.value!r}; a worker whose engine moves no KV must be 'unified'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="role")


def _publish_kv(config: WorkerConfig, engine: Engine, now: Callable[[], float]) -> KvEvents | None:
    """Return what publishes KV events, None where nobody asked for them."""
    if not config.kv_events:
        return None
    if isinstance(engine, PlanningEngine):
        message = f"kv_events: engine {config.engine} keeps its own cache, and publishes itself"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="kv_events")
    try:
        from services.worker.kv_events import KvEvents
    except ImportError as error:
        message = f"kv_events: {error}: pip install 'headway[picker]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="kv_events") from error
    return KvEvents(
        *(config.kv_events, config.kv_events_replay, config.kv_events_topic, config.dp, now),
        adapters=[adapter.name for adapter in engine.info.adapters],
    )


def _max_running(config: WorkerConfig, engine: EngineInfo) -> int:
    """Return the most requests of a DP unit in one pass, 0 for any number."""
    most = engine.max_running
    limits = (config.max_running, max(1, most // config.dp) if most else 0)
    return min((limit for limit in limits if limit), default=0)


def _core(
    config: WorkerConfig, info: WorkerInfo, loaded: Engine, reasoning: Markers
) -> WorkerCore | PlanningEngineCore:
    policies, engine = config.policies(), loaded.info
    settings = replace(
        policies.worker,
        end_of_reasoning=reasoning.end,
        start_of_reasoning=reasoning.start,
        swaps_beside=engine.swaps_beside,
        host_tokens=engine.num_host_blocks // config.dp * engine.block_size,
        max_running=_max_running(config, engine),
    )
    batching, estimation = policies.make_batching(), policies.make_estimation()
    if isinstance(loaded, PlanningEngine):
        if config.dp != 1:
            raise invalid("dp", config.dp, f"1 with engine {config.engine}")
        eos = engine.eos_token_ids
        return PlanningEngineCore(info, eos, batching, settings, estimation)
    return WorkerCore(info, engine.eos_token_ids, batching, settings, estimation=estimation)
