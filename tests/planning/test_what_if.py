"""What-if replays: recorded requests, simulated on other instances."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from headway.cluster import Role
from headway.console import measured
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.messages import MeasuredCosts
from headway.picture import CostPicture, WorkerPicture
from planning.what_if import WhatIf, answer, replay


def question(**changed: Any) -> dict[str, Any]:
    rng, at = random.Random(3), 0.0
    requests = []
    for _ in range(120):
        at += rng.expovariate(4.0)
        row = (at, rng.randint(100, 2000), rng.randint(5, 60), 0, "chat", rng.random() < 0.5, 0.3)
        requests.append(row)
    asked = {
        "requests": requests,
        "classes": {"chat": {"ttft": 1.0}},
        "ttft": 2.0,
        "profile": "llama-8b-a100",
        "workers": {"prefill": 1, "decode": 2, "unified": 0},
        "preset": "sbs",
        "policy": "",
        "settings": "",
    }
    return {**asked, **changed}


def test_both_curves_lie_over_the_same_arrivals() -> None:
    found = replay(WhatIf.read(question()))
    assert found["fidelity"] == "policies"
    assert found["num_requests"] == 120
    recorded, replayed = found["recorded"], found["replayed"]
    assert [at for at, _ in recorded["curve"]] == [at for at, _ in replayed["curve"]]
    assert 0.3 < recorded["kept"] < 0.7
    assert replayed["kept"] > 0.9


def test_fewer_workers_keep_fewer_promises() -> None:
    few = {"prefill": 1, "decode": 1}
    slow = question(workers=few, profile="llama-8b-a100", classes={"chat": {"ttft": 0.2}})
    many = question(workers={"prefill": 4, "decode": 4}, classes={"chat": {"ttft": 0.2}})
    kept = [replay(WhatIf.read(each))["replayed"]["kept"] for each in (slow, many)]
    assert kept[0] < kept[1]


def test_a_replay_comes_with_what_the_record_ran_with_replayed() -> None:
    own = {"preset": "sbs", "policy": "", "settings": "", "workers": {"prefill": 1, "decode": 2}}
    same = answer(question(control=own))
    assert same["control"] == same["replayed"]
    other = answer(question(control=own, workers={"unified": 1}, preset="vllm-like"))
    assert other["control"] == same["replayed"]
    assert other["control"] != other["replayed"]
    assert "control" not in answer(question())


def test_a_control_that_cannot_be_replayed_says_why() -> None:
    own = {"preset": "gone", "policy": "", "settings": "", "workers": {"unified": 1}}
    found = answer(question(control=own))
    assert "preset is 'gone'" in found["control"]
    assert found["replayed"]["kept"] > 0.9


def test_a_preset_without_the_fast_fidelity_is_simulated_by_the_cores_and_that_is_said() -> None:
    assert replay(WhatIf.read(question(preset="pascal")))["fidelity"] == "cores"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"profile": ""}, "name a profile"),
        ({"preset": "fastest"}, "fastest"),
        ({"workers": {"prefill": 0}}, "workers is"),
        ({"workers": {"prefill": 100}}, "workers is"),
        ({"requests": []}, "requests is 0"),
        ({"requests": [1]}, "no replay"),
        ({"marked": 120}, "marked is 120"),
    ],
)
def test_what_cannot_be_replayed_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        replay(WhatIf.read(question(**changed)))


def test_a_replay_with_moves_at_intervals_that_no_float_is_ends() -> None:
    """Three fifths are less than three times a fifth: no turn may come twice."""
    asked = question(
        requests=[(n * 0.001, 231, 1150, 0, "", True, 0.7) for n in range(16)],
        workers={"prefill": 1, "decode": 2},
        preset="vllm-like",
        policy="rescheduling=current-load",
        settings="rescheduling.interval=0.2",
    )
    assert replay(WhatIf.read(asked))["num_requests"] == 16


SHORT = {
    Role.PREFILL: replace(load_profile("llama-8b-a100"), kv_capacity_tokens=1600),
    Role.DECODE: replace(load_profile("llama-8b-a100"), kv_capacity_tokens=1600),
}
AT_ONCE = [(n * 0.001, 231, 300, 0, "", True, 0.7) for n in range(16)]


def test_where_memory_is_short_the_cores_say_who_yields() -> None:
    asked = question(requests=AT_ONCE, preset="headway", measured=measured.packed(SHORT))
    assert replay(WhatIf.read(asked))["fidelity"] == "cores"
    few = WhatIf.read({**asked, "most_by_cores": 8})
    with pytest.raises(HeadwayError, match="short of memory"):
        replay(few)


def test_the_fast_fidelity_serves_a_prompt_that_waited_for_memory_of_a_handoff() -> None:
    rng, at, requests = random.Random(0), 0.0, []
    for _ in range(86):
        at += rng.expovariate(10.0)
        requests.append((at, rng.choice([40, 136, 480]), rng.choice([4, 30]), 0, "", True, 0.5))
    little = {role: replace(each, kv_capacity_tokens=640) for role, each in SHORT.items()}
    asked = question(
        requests=requests,
        preset="vllm-like",
        workers={"prefill": 1, "decode": 1},
        measured=measured.packed(little),
        marked=85,
    )
    found = replay(WhatIf.read(asked))
    assert found["fidelity"] == "policies", "all were served"
    assert found["request"]["replayed"]["total"] > 0.0


def test_a_request_that_never_ends_in_a_replay_breaks_its_promise() -> None:
    large = (0.02, 1500, 800, 0, "", True, 0.7)  # more than a worker's memory
    asked = question(
        requests=[*AT_ONCE, large], preset="vllm-like", measured=measured.packed(SHORT)
    )
    found = replay(WhatIf.read({**asked, "marked": 16}))
    assert found["request"]["replayed"]["total"] is None
    assert found["replayed"]["kept"] <= 16 / 17


def test_the_request_that_is_asked_about_has_its_own_times() -> None:
    asked = question(marked=7)
    found = replay(WhatIf.read(asked))
    assert found["request"]["recorded"]["ttft"] == 0.3
    assert 0.0 < found["request"]["replayed"]["ttft"] < found["request"]["replayed"]["total"]
    assert found["workers"] == {"prefill": 1, "decode": 2}


def test_too_many_requests_for_the_cores_are_refused_where_somebody_waits() -> None:
    asked = question(preset="pascal", most_by_cores=100)
    with pytest.raises(HeadwayError, match=r"120 requests are too many .* --fidelity cores"):
        replay(WhatIf.read(asked))


def seen(worker_id: str, role: Role, costs: MeasuredCosts | None) -> WorkerPicture:
    plain = WorkerPicture(worker_id, role, "m", "h:1", 1, False, 0, 0, 0, 0, 0, 16, 4096, 0, 0)
    return plain if costs is None else replace(plain, costs=CostPicture(512, 1024, costs))


PROMPTS = MeasuredCosts(base=0.02, per_prefill_token=0.0002, per_request=0.5)
DECODES = MeasuredCosts(base=0.01, per_request=0.001, per_kv_token=1e-6)


def test_costs_that_the_workers_have_measured_replay_without_a_profile() -> None:
    workers = [
        seen("p", Role.PREFILL, PROMPTS),
        seen("d-1", Role.DECODE, DECODES),
        seen("d-2", Role.DECODE, None),
    ]
    found = measured.measured_profiles(workers)
    assert found[Role.PREFILL].pass_time.base == 0.02
    decode = found[Role.DECODE]
    assert (decode.pass_time.base, decode.pass_time.per_request) == (0.01, 0.001)
    assert decode.pass_time.per_prefill_token == 0.0002
    assert (decode.kv_capacity_tokens, decode.chunk_tokens) == (16 * 4096, 512)
    asked = question(profile="", measured=json.loads(json.dumps(measured.packed(found))))
    told = replay(WhatIf.read(asked))
    assert told["profile"] == "measured"
    assert told["replayed"]["ttft_p50"] > 0.02


@pytest.mark.parametrize(
    ("costs", "said"), [(DECODES, "prompts"), (MeasuredCosts(per_prefill_token=1e-4), "decode")]
)
def test_what_the_workers_have_not_measured_is_named(costs: MeasuredCosts, said: str) -> None:
    with pytest.raises(HeadwayError, match=f"too few {said}"):
        measured.measured_profiles([seen("u", Role.UNIFIED, costs)])
