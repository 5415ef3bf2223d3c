"""The ends of steps, as a subscriber reads them; what stands beside the plug-in and is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.vllm.server import EngineLimits, Server, serving
from headway.core.picker.core import PickerCore
from headway.core.picker.events import EndpointInfo, EndpointListed, Ends, Stepped
from headway.errors import Code, HeadwayError
from services.local.store import free_port
from tests.fakes.vllm_rig import MODEL

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.order import PolicyOrder
from headway_vllm.overhead import drawn_by, make_scheduler
from headway_vllm.phases import markers_of
from headway_vllm.settings import SETTING, read_settings
from headway_vllm.shim import engine_config
from headway_vllm.steps import FORMAT, TOPIC, StepEnd, StepTopic

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

STEP = StepEnd(5.0, 0.25, 64, 3, 4, 2, 90, 100, 16)


def listen(port: int) -> Any:
    """Return a subscriber; a publisher sees it a moment after it has come."""
    import zmq

    socket: Any = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
    socket.setsockopt(zmq.RCVTIMEO, 60_000)
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def test_a_step_is_a_numbered_message_with_a_map() -> None:
    import msgspec

    port = free_port()
    topic, socket = StepTopic(str(port), 0), listen(port)
    while not socket.poll(100):
        topic.publish(STEP)
    (name, first, payload), (_, second, _) = socket.recv_multipart(), published(topic, socket)
    assert name == TOPIC
    assert int.from_bytes(second, "big") == int.from_bytes(first, "big") + 1
    assert msgspec.msgpack.decode(payload) == {"v": FORMAT, "rank": 0, **STEP._asdict()}
    topic.close()
    socket.close()


async def test_two_ranks_of_a_plain_vllm_report_their_steps_each_at_its_own_port(
    tmp_path: Path,
) -> None:
    from services.endpoints.steps import read_steps

    port, metrics = free_port(), free_port()
    found: dict[str, list[Stepped]] = {"0": [], "1": []}
    settings = {"batching": "headway", "steps": port, "metrics": metrics}
    flags = ("--max-model-len", "1024", "--scheduler-cls", "headway_vllm.HeadwayScheduler")
    server = Server(
        str(MODEL),
        EngineLimits(max_running=8, chunk_tokens=128),
        (*flags, "--data-parallel-size", "2"),
        {SETTING: json.dumps(settings)},
    )
    core = PickerCore()
    core.handle(EndpointListed(EndpointInfo("0", "", 128, has_metrics=False)), now=0.0)
    async with serving(server, tmp_path, "v0") as target, httpx.AsyncClient(timeout=120) as client:

        async def ask(rank: str, prompt: list[int]) -> Any:
            body = {"model": MODEL.name, "prompt": prompt, "max_tokens": 4, "temperature": 0.0}
            headers = {"X-data-parallel-rank": rank}
            answer = await client.post(f"{target.url}/v1/completions", json=body, headers=headers)
            return answer.json()["choices"][0]["text"]

        readings = [
            asyncio.create_task(
                read_steps(rank, f"tcp://127.0.0.1:{port + int(rank)}", steps.append)
            )
            for rank, steps in found.items()
        ]
        answers = []
        for rank, steps in found.items():
            while not steps:
                await ask(rank, [30] * 20)
            answers.append(await ask(rank, [31] * 300))
            while sum(step.prefill_tokens for step in steps[-8:]) < 300:
                await asyncio.sleep(0.05)
            counts = (await client.get(f"http://127.0.0.1:{metrics + int(rank)}/metrics")).text
            told = counts.partition("\nheadway_vllm_steps_total ")[2].split()[0]
            assert float(told) >= len(steps)
        for reading in readings:
            reading.cancel()
    assert answers[0] == answers[1]
    for steps in found.values():
        chunks = [step.prefill_tokens for step in steps if step.prefill_tokens]
        assert [n for n in chunks if n > 20] == [128, 128, 44]
    for step in found["0"]:
        core.handle(step, now=1.0)
    assert core.endpoints(now=1.0)[0].ends is Ends.EXACT


def published(topic: StepTopic, socket: Any) -> Any:
    topic.publish(STEP)
    return socket.recv_multipart()


def test_an_address_that_is_taken_is_refused_by_name() -> None:
    port = free_port()
    topic = StepTopic(f"127.0.0.1:{port}", 0)
    with pytest.raises(HeadwayError, match=str(port)) as refused:
        StepTopic(str(port - 1), 1)
    assert refused.value.code is Code.UNAVAILABLE
    topic.close()


def test_the_scheduler_publishes_what_a_step_has_done_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    scheduler = make_scheduler(str(MODEL), "fcfs", 1, 40, chunk=64)
    ends: list[StepEnd] = []

    class Kept:
        def publish(self, step: StepEnd) -> None:
            ends.append(step)

    scheduler._topic = Kept()
    for number in range(2):
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        prompt = [1] * 100
        scheduler.add_request(Request(f"r{number}", prompt, params, None, arrival_time=1.0))
    for _ in range(3):
        plan = scheduler.schedule()
        names = plan.num_scheduled_tokens
        chunks = {name for name in names if scheduler.requests[name].is_prefill_chunk}
        scheduler.update_from_output(plan, drawn_by({n: [] if n in chunks else [5] for n in names}))
    assert [(each.prefill_tokens, each.decode_tokens) for each in ends] == [
        (64, 0),
        (36, 0),
        (0, 1),
    ]
    assert {(each.num_running, each.num_waiting) for each in ends} == {(1, 1)}
    assert [each.free_blocks for each in ends] == [37, 35, 35]


def test_priority_of_vllm_beside_the_plug_in_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import headway_vllm.overhead as rig

    def with_priority(model: str, options: dict[str, Any]) -> Any:
        return engine_config(model, {**options, "scheduling_policy": "priority"})

    monkeypatch.setattr(rig, "engine_config", with_priority)
    with pytest.raises(HeadwayError, match="leave --scheduling-policy out") as refused:
        make_scheduler(str(MODEL), "headway", 2, 40)
    assert refused.value.code is Code.FAILED_PRECONDITION


# --- phases -------------------------------------------------------------------------------


def test_markers_are_those_of_the_tokenizer_or_of_the_reasoning_parser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"max_model_len": 128, "async_scheduling": False}
    config = engine_config(str(MODEL), options)
    found = markers_of(config)
    assert found.end
    assert found.start
    parsed = engine_config(str(MODEL), {**options, "reasoning_parser": "deepseek_r1"})
    assert parsed.reasoning_config.enabled
    assert markers_of(parsed) == found
    monkeypatch.setenv(SETTING, json.dumps({}))
    order = read_settings().order(lambda: markers_of(config))
    assert isinstance(order, PolicyOrder)
    assert type(order.policy).__name__ == "Headway"
