"""A live run beside its simulation: what is compared, and what a profile is made of."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.calibrate.figures import Seen, compare
from bench.calibrate.live import one_by_one, poisson, simulated, write_trace
from bench.calibrate.model import (
    NUM_REPLAYS,
    find_latency,
    fit_profile,
    matched,
    read_records,
    simulation,
)
from headway.cost.fit import MeasuredPass
from headway.cost.pass_time import PassTime, Share
from headway.errors import HeadwayError
from headway.metrics import percentile
from headway.workload.traces import load_trace

TRUTH = PassTime(base=0.002, per_prefill_token=5e-5, per_request=1e-4, per_kv_token=1e-7)
WORKER = {
    "worker_id": "unified-1",
    "model": "m",
    "chunk_tokens": 512,
    "block_size": 16,
    "num_blocks": 4096,
    "max_model_len": 2048,
    "kv_bytes_per_token": 3072,
    "role": "unified",
}


def write_record(folder: Path) -> None:
    """A worker whose passes cost what ``TRUTH`` says."""
    rng = random.Random(1)
    lines: list[dict[str, object]] = [{"worker": WORKER}]
    for _ in range(300):
        batch = rng.randrange(0, 9)
        share = {
            "prefill_tokens": rng.choice([0, 0, rng.randrange(1, 512)]),
            "prefill_context": 0,
            "batch": batch,
            "kv_tokens": batch * rng.randrange(50, 900),
        }
        lines.append({"seconds": TRUTH.seconds(*share.values()), "units": [share]})
    text = "\n".join(json.dumps(line) for line in lines)
    (folder / "unified-1.jsonl").write_text(text + "\n", encoding="utf-8")


def test_a_profile_has_the_passes_times_and_the_workers_capacities(tmp_path: Path) -> None:
    write_record(tmp_path)
    profile, fit = fit_profile(read_records(tmp_path), "here")
    assert profile.pass_time.base == pytest.approx(TRUTH.base, rel=0.02)
    assert profile.pass_time.per_prefill_token == pytest.approx(TRUTH.per_prefill_token, rel=0.02)
    assert profile.kv_capacity_tokens == 4096 * 16
    assert (profile.chunk_tokens, profile.kv_bytes_per_token) == (512, 3072)
    assert fit.median_error < 0.01


def test_a_simulation_of_the_same_machine_misses_nothing(tmp_path: Path) -> None:
    write_record(tmp_path)
    records = read_records(tmp_path)
    profile, _ = fit_profile(records, "here")
    lone, rows = one_by_one(0.5, 20, 0), poisson(20, 60, 1)
    alone = simulation(records, profile, "vllm-like", lone, 0.004)
    ttft = sorted(each.ttft for each in alone)[len(alone) // 2]
    latency = find_latency(records, profile, "vllm-like", lone, ttft)
    assert latency == pytest.approx(0.004, rel=0.1)
    live = simulation(records, profile, "vllm-like", rows, 0.004)
    figures = compare(live, simulation(records, profile, "vllm-like", rows, latency))
    assert len(live) == 60 * NUM_REPLAYS
    assert all(figure.error < 0.05 for figure in figures)


def test_decode_and_prefill_are_as_slow_together_as_they_were() -> None:
    decode, prefill = Share(0, 0, 2, 300), Share(100, 0, 1, 50)
    usual = [MeasuredPass([each], TRUTH.seconds(*each)) for each in (decode, prefill)]
    slower = [replace(usual[0], seconds=1.2 * usual[0].seconds)] * 9
    slower += [replace(usual[1], seconds=2 * usual[1].seconds)] * 3
    found = matched(TRUTH, slower)
    assert found.seconds(*decode) == pytest.approx(slower[0].seconds)
    assert found.seconds(*prefill) == pytest.approx(slower[-1].seconds)
    assert matched(TRUTH, usual[:1] * 9) == TRUTH


def test_a_tail_of_the_passes_is_a_tail_of_the_simulation(tmp_path: Path) -> None:
    write_record(tmp_path)
    (even,) = read_records(tmp_path)
    passes = [
        replace(each, seconds=each.seconds * (8 if number % 60 < 6 else 0.5))
        for number, each in enumerate(even.passes)
    ]
    profile, _ = fit_profile([even], "here")
    rows = poisson(4, 60, 1)
    calm = simulation([even], profile, "vllm-like", rows, 0.001)
    uneven = simulation([replace(even, passes=passes)], profile, "vllm-like", rows, 0.001)

    def p99(seen: list[Seen]) -> float:
        return percentile(sorted(each.ttft for each in seen), 0.99)

    assert p99(uneven) > 1.5 * p99(calm)


def test_errors_are_shares_of_the_live_figure() -> None:
    live = [Seen(0.1, 0.01, 1.0), Seen(0.3, None, 2.0)]
    found = {row.name: row for row in compare(live, [Seen(0.1, 0.02, 1.0), Seen(0.2, None, 1.0)])}
    assert found["TTFT mean"].error == pytest.approx(0.25)
    assert found["TPOT mean"].error == pytest.approx(1.0)
    assert found["E2E P99"].error == pytest.approx(0.5, abs=0.01)


def test_loads_can_be_drawn_again_replayed_and_simulated(tmp_path: Path) -> None:
    rows = poisson(4.0, 50, 3)
    assert rows == poisson(4.0, 50, 3)
    assert rows != poisson(4.0, 50, 4)
    write_trace(tmp_path / "t.jsonl", rows)
    replayed = load_trace(tmp_path / "t.jsonl").rows
    assert [r.prompt_tokens for r in replayed] == [r.prompt_tokens for r in rows]
    asked = list(simulated(rows))
    assert [a.num_output_tokens for a in asked] == [r.output_tokens for r in rows]


def test_without_a_pass_there_is_nothing_to_fit(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(json.dumps({"worker": WORKER}) + "\n")
    with pytest.raises(HeadwayError, match="no worker recorded a pass"):
        read_records(tmp_path)
