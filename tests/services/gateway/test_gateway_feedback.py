"""What the gateway tells and asks the predictor and the autoscaler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protos import autoscaler_pb2, autoscaler_pb2_grpc, predictor_pb2, predictor_pb2_grpc
from services.gateway import feedback
from services.gateway.feedback import MeanLengths
from services.runtime.config import ServiceConfig
from services.runtime.server import GrpcServer
from services.runtime.store import Member, Store
from tests.fakes.gateway_harness import cluster, until


class Listener(predictor_pb2_grpc.PredictorServicer, autoscaler_pb2_grpc.AutoscalerServicer):
    """Both services in one, remembering what they hear."""

    def __init__(self) -> None:
        self.observed: list[predictor_pb2.ObserveRequest] = []
        self.rates: list[autoscaler_pb2.RateReport] = []
        self.num_asked = 0

    @property
    def has_heard_of_output(self) -> bool:
        return any(report.output_tokens_per_s > 0 for report in self.rates)

    async def Observe(
        self, request: predictor_pb2.ObserveRequest, context: Any
    ) -> predictor_pb2.ObserveReply:
        self.observed.append(request)
        return predictor_pb2.ObserveReply(num_observed=len(self.observed))

    async def GetTable(
        self, request: predictor_pb2.GetTableRequest, context: Any
    ) -> predictor_pb2.LengthTable:
        self.num_asked += 1
        return predictor_pb2.LengthTable(
            model=request.model,
            bucket_upper_bounds=[4],
            mean_output_tokens=[10.0, 20.0],
            num_samples=[1, 1],
        )

    async def ReportRates(
        self, request: autoscaler_pb2.RateReport, context: Any
    ) -> autoscaler_pb2.RateReportReply:
        self.rates.append(request)
        return autoscaler_pb2.RateReportReply()


async def listen(listener: Listener, store: Store, *services: str) -> GrpcServer:
    """Start the listener as these services."""
    server = GrpcServer(ServiceConfig(service_id="listener"))
    server.add(listener)
    address = await server.start()
    for service in services:
        await store.join(Member(service, f"{service}-1", address), ttl=60)
    return server


def test_a_table_predicts_by_bucket_with_the_last_one_open() -> None:
    lengths = MeanLengths((4, 8), (10.0, 20.0, 30.0))
    assert [lengths.predict(n) for n in (1, 4, 5, 8, 9, 10**6)] == [10, 10, 20, 20, 30, 30]
    assert MeanLengths().predict(5) == 0.0


async def test_lengths_are_reported_and_asked_for_and_rates_told(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback, "_CALL_TIMEOUT", 60.0)  # a report that fails is dropped
    async with cluster(tmp_path, store_url) as running:
        listener = Listener()  # type: ignore[abstract]  # the other calls are nobody's here
        client = running.openai()
        await client.completions.create(model="tiny", prompt="abc")  # nobody knows a length yet
        server = await listen(listener, running.store, "predictor", "autoscaler")
        await until(lambda: bool(listener.observed) and listener.has_heard_of_output)
        assert listener.observed[0].num_prompt_tokens == [3]
        assert listener.observed[0].num_output_tokens == [3]
        assert listener.observed[0].model == "tiny"
        assert all(report.gateway_id == "gateway-under-test" for report in listener.rates)
        assert all(len(report.bucket_tokens_per_s) == 9 for report in listener.rates)
        assert sum(sum(report.bucket_tokens_per_s) for report in listener.rates) > 0
        assert not any(report.HasField("burst_tokens_per_s") for report in listener.rates)
        await until(lambda: bool(listener.num_asked))
        predicted = [0.0]
        deadline = asyncio.get_running_loop().time() + 60
        while predicted[-1] == 0.0 and asyncio.get_running_loop().time() < deadline:
            await client.completions.create(model="tiny", prompt="abc")  # it may be under way
            predicted = [r.predicted_output_tokens for r in running.emulated.submitted]
        await client.completions.create(model="tiny", prompt="abcdef", max_tokens=32)
        predicted = [r.predicted_output_tokens for r in running.emulated.submitted]
        assert predicted[0] == 0.0
        assert predicted[-2:] == [10.0, 20.0]
        await server.stop(0)


async def test_requests_that_yield_by_their_class_are_no_arrivals(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url) as running:
        listener = Listener()  # type: ignore[abstract]  # the other calls are nobody's here
        client = running.openai()
        server = await listen(listener, running.store, "autoscaler")
        for name in ("batch", "interactive"):
            await client.completions.create(
                model="tiny", prompt="abc", extra_headers={"x-headway-class": name}
            )

        def told(field: str) -> float:
            return sum(float(getattr(each, field)) * each.window for each in listener.rates)

        await until(lambda: told("output_tokens_per_s") > 5.5)  # both have been produced
        assert round(told("requests_per_s")) == 1
        assert round(told("input_tokens_per_s")) == 3
        await server.stop(0)


async def test_a_predictor_that_cannot_be_reached_costs_no_request(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url) as running:
        gone = Member("predictor", "predictor-1", "127.0.0.1:1")
        await running.store.join(gone, ttl=60)
        answer = await running.openai().completions.create(model="tiny", prompt="abc")
        assert answer.choices[0].text == "abc"

        failures = running.service.metrics.registry.get_sample_value
        name = "headway_gateway_feedback_failures_total"
        await until(lambda: (failures(name, {"service": "predictor"}) or 0) >= 1)
