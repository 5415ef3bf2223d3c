"""The predictor: hidden states into remaining lengths, finished requests into tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from prometheus_client import Counter

from headway.core.predictor.core import Observed, PredictorCore
from protos import predictor_pb2, predictor_pb2_grpc
from services.predictor.config import PredictorConfig
from services.predictor.models import Models
from services.runtime import wire
from services.runtime.service import Runtime

_Context = grpc.aio.ServicerContext[Any, Any]


async def build(runtime: Runtime[PredictorConfig]) -> PredictorService:
    """Return the service, with its RPCs registered."""
    service = PredictorService(runtime)
    runtime.server.add(service)
    return service


class PredictorService(predictor_pb2_grpc.PredictorServicer):
    """The shell around :class:`PredictorCore`."""

    def __init__(self, runtime: Runtime[PredictorConfig]) -> None:
        self._clock = runtime.clock
        self._core = PredictorCore()
        self._models = Models(runtime.config, runtime.metrics)
        self._observed = Counter(
            "headway_predictor_observed_requests",
            "Finished requests learned from",
            registry=runtime.metrics,
        )

    def member(self) -> Mapping[str, Any]:
        """Describe this predictor for the membership: no further fields."""
        return {}

    async def start(self) -> None:
        """Load the trained predictors."""
        await self._models.start()

    async def drain(self) -> None:
        """Do nothing: there is nothing to wait for."""

    async def stop(self) -> None:
        """Stop scoring."""
        await self._models.stop()

    async def Predict(  # noqa: N802 (the proto's name)
        self, request: predictor_pb2.PredictRequest, context: _Context
    ) -> predictor_pb2.PredictReply:
        """See ``protos/predictor.proto``."""
        scores = await self._models.answer(wire.unpack_question(request))
        return predictor_pb2.PredictReply(
            remaining=scores.remaining.tolist(), version=scores.version, weight=scores.weight
        )

    async def Observe(  # noqa: N802 (the proto's name)
        self, request: predictor_pb2.ObserveRequest, context: _Context
    ) -> predictor_pb2.ObserveReply:
        """See ``protos/predictor.proto``."""
        event = Observed(
            request.model, tuple(request.num_prompt_tokens), tuple(request.num_output_tokens)
        )
        self._core.handle(event, now=self._clock.now())
        self._observed.inc(len(request.num_prompt_tokens))
        return predictor_pb2.ObserveReply(num_observed=self._core.num_observed)

    async def GetTable(  # noqa: N802 (the proto's name)
        self, request: predictor_pb2.GetTableRequest, context: _Context
    ) -> predictor_pb2.LengthTable:
        """See ``protos/predictor.proto``."""
        table = self._core.table(request.model)
        return predictor_pb2.LengthTable(
            model=request.model,
            bucket_upper_bounds=table.bounds,
            mean_output_tokens=table.means,
            num_samples=table.num_samples,
        )
