"""What-if replays: recorded requests, simulated on other instances."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bench.what_if import WhatIf, replay
from headway.errors import HeadwayError


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
