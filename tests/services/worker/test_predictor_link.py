"""Hidden states on their way to a real predictor; nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headway.core.worker.events import AskPredictor, Predicted, PredictorKnown
from headway.forward_pass import HiddenStates
from headway.request import StreamKey
from services.predictor.config import PredictorConfig
from services.runtime.config import ServiceConfig
from services.runtime.store import Store
from services.worker.metrics import PredictionMetrics
from services.worker.predictor_link import MOST_QUEUED, PredictorLink, _parts
from tests.fakes.predictor_rig import constant_predictor, serving, states


class Linked:
    """A link, and what it has told the core."""

    def __init__(self, config: ServiceConfig, store: Store) -> None:
        self.told: list[Predicted | PredictorKnown] = []
        self.metrics = PredictionMetrics(CollectorRegistry())
        self.link = PredictorLink(config, "m", store, self.told.append, self.metrics)

    @property
    def is_known(self) -> bool:
        known = [each.is_known for each in self.told if isinstance(each, PredictorKnown)]
        return bool(known) and known[-1]

    @property
    def predicted(self) -> list[Predicted]:
        return [each for each in self.told if isinstance(each, Predicted)]

    async def ask_until_answered(self, question: AskPredictor) -> None:
        """Again and again: on a busy machine a call may be too late."""
        async with asyncio.timeout(20):
            while not self.predicted:
                self.link.ask(question)
                await asyncio.sleep(0.1)

    async def until_known(self, is_known: bool) -> None:
        async with asyncio.timeout(20):
            while self.is_known is not is_known:
                await asyncio.sleep(0.01)


@pytest.fixture
async def linked(store_url: str, cluster: str, store: Store) -> AsyncIterator[Linked]:
    found = Linked(ServiceConfig(store=store_url, cluster=cluster), store)
    found.link.start()
    yield found
    await found.link.stop()


@pytest.fixture
def config(store_url: str, cluster: str, tmp_path: Path) -> PredictorConfig:
    constant_predictor(tmp_path, 30.0)
    return PredictorConfig(
        service_id="p", store=store_url, cluster=cluster, predictors={"m": tmp_path}
    )


def ask(first: int, count: int = 1, width: int = 4) -> AskPredictor:
    keys = tuple(StreamKey("g", first + number) for number in range(count))
    return AskPredictor(HiddenStates(keys, states(*[1.0] * count, width=width)), (21,) * count)


async def test_states_go_to_the_predictor_and_lengths_come_back(
    linked: Linked, config: PredictorConfig
) -> None:
    async with serving(config, joins=True):
        await linked.until_known(True)
        await linked.ask_until_answered(ask(1, 2))
    keys = (StreamKey("g", 1), StreamKey("g", 2))
    assert linked.predicted[0] == Predicted(keys, (21, 21), (30.0, 30.0))


async def test_a_predictor_that_leaves_is_asked_no_more(
    linked: Linked, config: PredictorConfig
) -> None:
    async with serving(config, joins=True):
        await linked.until_known(True)
    await linked.until_known(False)


async def test_a_predictor_that_does_not_know_the_model_is_left_in_peace(
    linked: Linked, config: PredictorConfig
) -> None:
    other = config.model_copy(update={"predictors": {"other": config.predictors["m"]}})
    async with serving(other, joins=True):
        await linked.until_known(True)
        async with asyncio.timeout(20):
            while linked.is_known:  # on a busy machine a call may be too late
                linked.link.ask(ask(1))
                await asyncio.sleep(0.1)
    assert linked.predicted == []


async def test_a_refused_question_is_counted_and_the_next_is_answered(
    linked: Linked, config: PredictorConfig
) -> None:
    async with serving(config, joins=True):
        await linked.until_known(True)
        refused = linked.metrics.failed.labels("invalid_argument")._value
        async with asyncio.timeout(20):
            while not refused.get():
                linked.link.ask(ask(1, width=3))
                await asyncio.sleep(0.1)
        await linked.ask_until_answered(ask(2))
    assert {each.keys[0].stream_id for each in linked.predicted} == {2}


async def test_the_oldest_pass_makes_room_for_the_newest(linked: Linked) -> None:
    for number in range(MOST_QUEUED + 3):
        linked.link.ask(ask(number))
    assert linked.metrics.dropped._value.get() == 3
    assert [each.hidden.keys[0].stream_id for each in linked.link._queue] == list(
        range(3, MOST_QUEUED + 3)
    )


def test_a_batch_too_large_for_one_call_is_cut() -> None:
    parts = list(_parts(ask(0, 1000, width=4096)))
    assert [len(part.hidden.keys) for part in parts] == [256, 256, 256, 232]
    assert sum(len(part.num_output_tokens) for part in parts) == 1000
    assert len(list(_parts(ask(0, 10)))) == 1
