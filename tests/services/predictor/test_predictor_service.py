"""Scoring over real gRPC: batches, versions, several models, learning, refusals."""

from __future__ import annotations

import asyncio
from math import inf, isnan, nan
from pathlib import Path

import grpc
import numpy as np
import pytest

from headway.core.predictor.samples import Samples
from headway.errors import HeadwayError
from headway.forward_pass import HiddenStates
from headway.messages import FinishedRequest
from headway.request import FinishReason, StreamKey
from protos import predictor_pb2
from services.predictor.config import PredictorConfig
from services.predictor.learner import Learner, LearnSettings
from services.predictor.scorer import Scorer
from services.predictor.versions import load_version, newest_version
from services.runtime import wire
from tests.fakes.predictor_rig import constant_predictor, fresh_predictor, question, serving, states


@pytest.fixture
def config(store_url: str, cluster: str, tmp_path: Path) -> PredictorConfig:
    """Two models, each with a predictor that says one number."""
    constant_predictor(tmp_path / "m", 30.0)
    constant_predictor(tmp_path / "n", 70.0, width=2)
    return PredictorConfig(
        store=store_url,
        cluster=cluster,
        predictors={"m": tmp_path / "m", "n": tmp_path / "n"},
        reload_interval=0.05,
    )


async def test_every_model_has_its_own_predictor(config: PredictorConfig) -> None:
    async with serving(config) as stub:
        first = await stub.Predict(question(states(1, 2, 3)))
        second = await stub.Predict(question(states(1, width=2), model="n"))
    assert (list(first.remaining), first.version) == ([30.0] * 3, "v0001")
    assert list(second.remaining) == [70.0]


async def test_a_model_without_a_predictor_is_not_found(config: PredictorConfig) -> None:
    async with serving(config) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Predict(question(states(1), model="other"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "there are: m, n" in str(refused.value.details())


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (question(states(1, width=5)), "width is 5"),
        (question(states(nan)), "hidden"),
        (question(states(inf, nan)), "hidden"),
        (predictor_pb2.PredictRequest(model="m"), "the number of requests is 0"),
    ],
    ids=["width", "nan", "none-is-good", "empty"],
)
async def test_a_bad_question_is_refused(
    config: PredictorConfig, asked: predictor_pb2.PredictRequest, named: str
) -> None:
    async with serving(config) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Predict(asked)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in str(refused.value.details())


async def test_a_bad_vector_is_refused_alone(config: PredictorConfig) -> None:
    async with serving(config) as stub:
        reply = await stub.Predict(question(states(1, nan, 3)))
    assert [isnan(each) for each in reply.remaining] == [False, True, False]


async def test_a_new_version_is_taken_up_while_serving(config: PredictorConfig) -> None:
    async with serving(config) as stub:
        assert (await stub.Predict(question(states(1)))).version == "v0001"
        constant_predictor(config.predictors["m"], 50.0)
        async with asyncio.timeout(20):
            while (reply := await stub.Predict(question(states(1)))).version == "v0001":
                await asyncio.sleep(0.02)
    assert (list(reply.remaining), reply.version) == ([50.0], "v0002")


async def test_a_version_that_is_no_predictor_is_passed_over(config: PredictorConfig) -> None:
    async with serving(config) as stub:
        broken = config.predictors["m"] / "v0002"
        broken.mkdir()
        (broken / "config.json").write_text("{}")
        constant_predictor(config.predictors["n"], 80.0, width=2)
        async with asyncio.timeout(20):
            while True:
                reply = await stub.Predict(question(states(1, width=2), model="n"))
                if reply.version == "v0002":
                    break
                await asyncio.sleep(0.02)
        assert (await stub.Predict(question(states(1)))).version == "v0001"


async def test_calls_that_come_together_are_one_batch(tmp_path: Path) -> None:
    constant_predictor(tmp_path, 30.0)
    batches: list[int] = []
    scorer = Scorer("m", tmp_path, lambda num_rows, seconds: batches.append(num_rows), 1)
    answers = await asyncio.gather(*(scorer.score(states(*[1.0] * n)) for n in (1, 2, 3)))
    await scorer.close()
    assert [len(each.remaining) for each in answers] == [1, 2, 3]
    assert sum(batches) == 6
    assert len(batches) <= 2


async def test_it_learns_from_finished_requests_when_asked(config: PredictorConfig) -> None:
    learning = config.model_copy(update={"learn": True, "learn_every": 40})
    folder = config.predictors["m"]
    fresh_predictor(folder, scale=200.0)
    async with serving(learning) as stub:
        for number in range(50):
            # The request before this one has ended, 200 tokens after its state was computed.
            ended = FinishedRequest(StreamKey("g", number), 0, 5, 201, FinishReason.STOP)
            hidden = HiddenStates((StreamKey("g", number + 1),), states(0.5))
            before = await stub.Predict(wire.pack_question("m", hidden, (1,), (ended,)))
        async with asyncio.timeout(30):
            while (after := await stub.Predict(question(states(0.5)))).version == "v0002":
                await asyncio.sleep(0.05)
    assert abs(after.remaining[0] - 200) < abs(before.remaining[0] - 200)
    assert load_version(folder).about["learned_from"] == "v0002"


def test_what_is_not_better_is_not_kept(tmp_path: Path) -> None:
    constant_predictor(tmp_path, 30.0)
    scorer = Scorer("m", tmp_path, lambda num_rows, seconds: None, 1)
    noise = np.random.default_rng(1)
    samples = Samples(
        noise.normal(size=(60, 4)).astype(np.float16),
        np.full(60, 30.0, dtype=np.float32),
        np.arange(60),
    )
    assert Learner(scorer, LearnSettings()).learn(samples) == ""
    assert newest_version(tmp_path) == "v0001"


def test_a_folder_without_a_version_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="headway predictor train"):
        load_version(tmp_path)


def test_what_a_network_says_is_never_below_zero(tmp_path: Path) -> None:
    constant_predictor(tmp_path, -5.0)
    assert load_version(tmp_path).network.remaining(states(1.0)).tolist() == [0.0]
    assert np.isnan(load_version(tmp_path).network.remaining(states(nan))).all()
