"""A live run beside its prediction: what is compared, and what a calibration is made of."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from headway.cluster import Role
from headway.cost.fit import MeasuredPass
from headway.cost.pass_time import PassTime, Share
from headway.cost.profile import parse_profile, profile_text
from headway.errors import HeadwayError
from headway.policies import registry
from headway.sim.hop_costs import Beside, HopCosts
from headway.workload.traces import load_trace
from planning.profile.calibration import Calibration
from planning.profile.cases import KINDS, PRESETS, TOPOLOGIES, chosen, matrix
from planning.profile.check import examine, overall
from planning.profile.figures import (
    TARGETS,
    LatencyLimits,
    Load,
    Seen,
    errors,
    figures,
    intervals,
)
from planning.profile.live import (
    LiveDeployment,
    LiveEngine,
    LiveLoad,
    LiveModel,
    Sent,
    keep,
    kept,
    note_asked,
    write_trace,
)
from planning.profile.loads import SPREAD, drawn, one_by_one, poisson, simulated
from planning.profile.model import (
    WorkerRecord,
    fit_profile,
    matched,
    measured_pace,
    read_records,
    slower,
    with_chunk,
)
from planning.profile.predict import NUM_REPLAYS, predict
from planning.profile.report import case_notes, overall_table
from planning.profile.sharing import LiveRun, level, measure_sharing, measure_wait
from planning.profile.spans import MeasuredHops, Span, measure_hops, spans_of
from services.local.options import WorkerCounts
from services.runtime.span_record import Heard

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
        seconds = TRUTH.seconds(*share.values())
        lines.append({"seconds": seconds, "began_at": 0.0, "share": share})
    text = "\n".join(json.dumps(line) for line in lines)
    (folder / "unified-1.jsonl").write_text(text + "\n", encoding="utf-8")


def test_a_profile_has_the_passes_times_and_the_workers_capacities(tmp_path: Path) -> None:
    write_record(tmp_path)
    profile, fit = fit_profile(read_records(tmp_path), "here", "CPU")
    assert profile.pass_time.base == pytest.approx(TRUTH.base, rel=0.02)
    assert profile.pass_time.per_prefill_token == pytest.approx(TRUTH.per_prefill_token, rel=0.02)
    assert profile.kv_capacity_tokens == 4096 * 16
    assert (profile.chunk_tokens, profile.kv_bytes_per_token) == (512, 3072)
    assert fit.median_error < 0.01


def test_a_measured_profile_has_all_that_an_autoscaler_asks_for(tmp_path: Path) -> None:
    measured = calibrated(tmp_path).profile
    assert measured.start_up == 3.5
    assert measured.network_tokens_per_s == pytest.approx(1e9 / 3072)
    assert measured.buckets.input_tokens == (256, 1024, 1438)
    assert measured.max_batch == 4096 // 23
    assert measured.device == "CPU, threads a worker: 1"
    profile = with_chunk(measured, 0.1)
    assert registry.make("scaling", "tokenscale", profile=profile).name == "tokenscale"
    assert profile.in_role(Role.CONVERTIBLE).chunk_tokens > 0
    assert profile.convertible_velocity(None, 0.1) > 0
    assert "TPOT of 0.1 s" in profile.origin
    assert parse_profile(profile_text(profile), "it") == profile
    assert with_chunk(measured, 1e-5) == measured  # nothing decodes so fast


HOPS = HopCosts(gateway=0.001, submit=0.002, dispatch=0.003, report=0.004, token=0.005, cores=2)
MEASURED = MeasuredHops(HOPS, 0.0005, 1e9)
ALONE = WorkerCounts(0, 0, unified=1)


HERE = LiveModel("m")


def calibrated(folder: Path, name: str = "here") -> Calibration:
    write_record(folder)
    return Calibration.of(read_records(folder), MEASURED, name, HERE, 3.5)


def test_passes_that_an_engine_plans_are_predicted_by_its_planner(tmp_path: Path) -> None:
    ours = calibrated(tmp_path)
    ours.save(tmp_path / "ours.toml")
    theirs = replace(ours, engine=LiveEngine("vllm-native", "{}"))
    theirs.save(tmp_path / "theirs.toml")
    assert Calibration.load(tmp_path / "ours.toml").engine == LiveEngine()
    assert Calibration.load(tmp_path / "theirs.toml").engine == theirs.engine
    rows = poisson(20.0, 60, 3)
    loads = [predict(each, "vllm-like", ALONE, rows).loads[0] for each in (ours, theirs)]
    assert all(each is not None for load in loads for each in load)
    with pytest.raises(HeadwayError, match="unified"):
        predict(theirs, "vllm-like", WorkerCounts(1, 1), rows)


def test_a_prediction_of_the_same_machine_misses_nothing(tmp_path: Path) -> None:
    found = calibrated(tmp_path)
    rows = poisson(20, 60, 1)
    live = predict(found, "vllm-like", ALONE, rows).loads
    again = predict(found, "vllm-like", ALONE, rows).loads
    assert sum(len(load) for load in live) == 60 * NUM_REPLAYS
    assert all(abs(error) < 0.05 for error in errors(live[0], again[:1]).values())


def test_a_lone_request_takes_every_hop(tmp_path: Path) -> None:
    found = calibrated(tmp_path)
    hops = replace(HOPS, cores=0)
    free = HopCosts(submit=0.0, dispatch=0.0, report=0.0)
    lone = one_by_one(0.5, 9, 0)
    with_hops, without = (
        predict(replace(found, hops=each), "vllm-like", ALONE, lone, num_replays=1).loads[0]
        for each in (hops, free)
    )
    cost = hops.gateway + hops.submit + hops.dispatch + hops.token
    for there, here in zip(with_hops, without, strict=True):
        assert there is not None
        assert here is not None
        assert there.ttft - here.ttft == pytest.approx(cost, rel=0.01)


def test_what_was_measured_is_read_back_from_its_files(tmp_path: Path) -> None:
    found = calibrated(tmp_path)
    found.save(tmp_path / "mine.toml")
    again = Calibration.load(tmp_path / "mine.toml")
    assert (again.profile, again.hops, again.fitted) == (found.profile, found.hops, found.fitted)
    assert again.worker_latency == 0.0005
    assert again.profile.link_bytes_per_s == 1e9
    assert list(again.pace.work) == pytest.approx(list(found.pace.work), abs=1e-8)


def test_a_profile_without_its_measurements_is_refused_with_the_way_out(tmp_path: Path) -> None:
    calibrated(tmp_path).save(tmp_path / "mine.toml")
    (tmp_path / "mine.passes.json").unlink()
    with pytest.raises(HeadwayError, match="headway profile run"):
        Calibration.load(tmp_path / "mine.toml")


def test_every_hop_is_measured_from_what_the_cores_heard() -> None:
    """Three requests of a second each; the middle one's hops are the median."""
    heard, sent = [], []
    for number, pace in enumerate((1, 2, 30)):
        now, request_id, key = float(number), f"request-{number}", f"gateway/{number}"
        sent.append(Sent(now, now + 0.029 * pace))
        for kind, after, about in (
            ("submitted", 0.001, [request_id]),
            ("requested", 0.003, [request_id, key]),
            ("dispatched", 0.006, [key]),
            ("passed", 0.024, [f"w/{number}", key]),
            ("tokens", 0.026, [key]),
            ("reported", 0.028, [f"w/{number}"]),
        ):
            heard.append(Heard(now + after * pace, kind, about))
    heard.append(Heard(0.0, "submitted", ["warm-up"]))
    found = measure_hops(heard, sent, cores=2)
    (slow,) = (s for s in spans_of(heard, sent) if s.hop == "submit" and s.began_at > 2.0)
    assert (slow.began_at, slow.seconds) == pytest.approx((2.03, 0.06))
    twice = {name: 2 * getattr(HOPS, name) for name in ("gateway", "submit", "dispatch", "token")}
    assert {n: getattr(found.hops, n) for n in twice} == pytest.approx(twice)
    assert found.hops.report == pytest.approx(0.008)
    assert found.hops.cores == 2
    assert (found.worker_latency, found.link_bytes_per_s) == (0.0, 0.0)


def test_a_link_carries_the_bytes_of_all_transfers_in_the_time_of_all() -> None:
    heard, sent = [], []
    for number, num_bytes in enumerate((1000, 3000)):
        key, now = f"gateway/{number}", float(number)
        sent.append(Sent(now, now + 0.1))
        for kind, at, about in (
            ("submitted", now, [str(number)]),
            ("requested", now, [str(number), key]),
            ("dispatched", now, [key]),
            ("passed", now, [f"p/{number}", key]),
            ("reported", now, [f"p/{number}"]),
            ("handoff", now, [key]),
            ("offered", now + 0.002, [key, num_bytes]),
            ("arrived", now + 0.002 + num_bytes / 1e6, [key]),
        ):
            heard.append(Heard(at, kind, about))
    found = measure_hops(heard, sent, cores=1)
    assert found.worker_latency == pytest.approx(0.002)
    assert found.link_bytes_per_s == pytest.approx(1e6)


def test_requests_that_left_no_trace_measure_nothing() -> None:
    with pytest.raises(HeadwayError, match="followed"):
        measure_hops([], [], cores=1)


def test_decode_and_prefill_are_as_slow_together_as_they_were() -> None:
    decode, prefill = Share(0, 0, 2, 300), Share(100, 0, 1, 50)
    usual = [MeasuredPass(each, TRUTH.seconds(*each)) for each in (decode, prefill)]
    slower = [replace(usual[0], seconds=1.2 * usual[0].seconds)] * 9
    slower += [replace(usual[1], seconds=2 * usual[1].seconds)] * 3
    found = matched(TRUTH, slower)
    assert found.seconds(*decode) == pytest.approx(slower[0].seconds)
    assert found.seconds(*prefill) == pytest.approx(slower[-1].seconds)
    assert matched(TRUTH, usual[:1] * 9) == TRUTH


def test_a_tail_of_the_passes_is_a_tail_of_the_prediction(tmp_path: Path) -> None:
    write_record(tmp_path)
    (even,) = read_records(tmp_path)
    passes = [
        replace(each, seconds=each.seconds * (8 if number % 60 < 6 else 0.5))
        for number, each in enumerate(even.passes)
    ]
    calm = Calibration.of([even], MEASURED, "calm", HERE, 3.5)
    pace = measured_pace([replace(even, passes=passes)], calm.profile)
    uneven = replace(calm, pace=pace)
    rows = poisson(4, 60, 1)

    def p99(machine: Calibration) -> float:
        loads = predict(machine, "vllm-like", ALONE, rows).loads
        return figures([seen for load in loads for seen in load])["TTFT P99"]

    assert p99(uneven) > 1.5 * p99(calm)


def test_errors_are_signed_shares_of_the_live_figure() -> None:
    live = [Seen(0.1, 0.01, 1.0), Seen(0.3, None, 2.0)]
    found = errors(live, [[Seen(0.1, 0.02, 1.0), Seen(0.2, None, 1.0)]])
    assert found["TTFT mean"] == pytest.approx(-0.25)
    assert found["TPOT mean"] == pytest.approx(1.0)
    assert found["E2E P99"] == pytest.approx(-0.5, abs=0.01)


def test_a_request_that_failed_live_counts_in_no_figure_but_breaks_the_slo() -> None:
    live: Load = [Seen(0.1, 0.01, 1.0), None]
    predicted: Load = [Seen(0.1, 0.01, 1.0), Seen(9.0, 9.0, 9.0)]
    assert set(errors(live, [predicted]).values()) == {0.0}
    assert LatencyLimits(0.2, 0.2).attainment(live) == 0.5


def test_an_interval_holds_the_error_and_narrows_with_the_number_of_requests() -> None:
    rng = random.Random(1)

    def width(count: int) -> float:
        live = [Seen(rng.expovariate(10), 0.01, 1.0) for _ in range(count)]
        predicted = [Seen(1.1 * each.ttft * rng.uniform(0.5, 1.5), 0.01, 1.0) for each in live]
        low, high = intervals(live, [predicted])["TTFT mean"]
        assert low < errors(live, [predicted])["TTFT mean"] < high
        return high - low

    assert width(400) < 0.5 * width(25)


def test_loads_can_be_drawn_again_replayed_and_simulated(tmp_path: Path) -> None:
    rows = poisson(4.0, 50, 3)
    assert rows == poisson(4.0, 50, 3)
    assert rows != poisson(4.0, 50, 4)
    write_trace(tmp_path / "t.jsonl", rows)
    replayed = load_trace(tmp_path / "t.jsonl").rows
    assert [r.prompt_tokens for r in replayed] == [r.prompt_tokens for r in rows]
    asked = list(simulated(rows))
    assert [a.num_output_tokens for a in asked] == [r.output_tokens for r in rows]


def test_the_parts_of_a_load_come_one_behind_another() -> None:
    rows = drawn(SPREAD, 0)
    assert len(rows) == sum(part.count for part in SPREAD)
    assert [row.arrival_at for row in rows] == sorted(row.arrival_at for row in rows)
    assert max(row.prompt_tokens or 0 for row in rows) > 900


def test_the_matrix_has_every_preset_topology_and_kind_of_load() -> None:
    assert len(matrix()) == len(PRESETS) * len(TOPOLOGIES) * len(KINDS)
    assert [case.name for case in chosen(["vllm-like/2U/*"])] == [
        f"vllm-like/2U/{kind}" for kind in KINDS
    ]
    with pytest.raises(HeadwayError, match="1P2D"):
        chosen(["vllm-like/3P/*"])
    (case,) = chosen(["headway/1P1D/20%"])
    rows = case.rows(50.0, 100, 1)
    assert 100 / rows[-1].arrival_at == pytest.approx(10.0, rel=0.4)


def slowed(record: WorkerRecord, factor: float) -> WorkerRecord:
    passes = [replace(each, seconds=factor * each.seconds) for each in record.passes]
    return replace(record, passes=passes)


def test_an_error_is_split_into_level_and_structure_and_a_moved_level_voids_the_run(
    tmp_path: Path,
) -> None:
    machine = calibrated(tmp_path)
    (record,) = read_records(tmp_path)
    (case,) = chosen(["vllm-like/1P1D/20%"])
    rows = poisson(10.0, 40, 2)
    runs = []
    for factor in (1.05, 1.05, 1.3):
        live = predict(
            machine, "vllm-like", TOPOLOGIES["1P1D"], rows, level=factor, num_replays=1
        ).loads[0]
        runs.append(LiveRun(LiveLoad(live, [], 0, 0.0), [slowed(record, factor)]))
    report = examine(case, 10.0, machine, rows, runs, LatencyLimits(0.1, 0.01))
    assert [each.level for each in report.repeats] == pytest.approx([1.05, 1.05, 1.3], rel=0.02)
    assert [each.is_void for each in report.repeats] == [False, False, True]
    first = report.repeats[0]
    assert first.total["TPOT mean"] < -0.03
    assert abs(first.structure["TPOT mean"]) < 0.02
    assert abs(first.attainment) < 5
    assert (first.num_failed, first.moves) == (0, 0)
    assert report.floor["TPOT mean"][0] == 0.0
    assert len(report.floor["TPOT mean"]) == 3
    assert "run 3 is void" in "\n".join(case_notes(report))
    found = {each.name: each for each in overall([report])}
    assert found["TPOT mean"].structure == pytest.approx(abs(first.structure["TPOT mean"]))
    assert overall_table(list(found.values())).row_count == len(TARGETS)


def test_passes_beyond_those_that_were_fitted_are_counted(tmp_path: Path) -> None:
    fitted = calibrated(tmp_path).fitted
    inside = MeasuredPass(Share(batch=1, kv_tokens=10), 0.1)
    outside = MeasuredPass(Share(batch=1000, kv_tokens=10), 0.1)
    assert fitted.share_outside([inside, inside, inside, outside]) == 0.25


def test_passes_that_share_the_cores_are_predicted_to_share_them() -> None:
    share = Share(batch=2, kv_tokens=300)
    passes = [MeasuredPass(share, TRUTH.seconds(*share) * 1.5)] * 4
    records = [WorkerRecord({}, passes, [0.0, 10.0, 20.0, 30.0]) for _ in range(3)]
    run = LiveRun(NO_LOAD, records)
    assert level(run, TRUTH, HopCosts(cores=2)) == pytest.approx(1.0)
    assert level(run, TRUTH, HopCosts(cores=0)) == pytest.approx(1.5)


NO_LOAD = LiveLoad([], [], 0, 0.0)
LOSSES = HopCosts(
    submit=0.001,
    dispatch=0.002,
    cores=2,
    decode_beside=0.1,
    decode_crowded=0.2,
    prefill_beside=0.5,
    prefill_crowded=1.5,
    per_request=0.004,
    wait=0.006,
)


def shared_run(num_workers: int, *came_at: float) -> LiveRun:
    """Workers with passes around every second, on a host with ``LOSSES``.

    The first has every other pass with prompts. Requests come a tenth of a second before some.
    """
    decode, prefill = Share(0, 0, 2, 300), Share(100, 0, 1, 50)
    records = []
    for worker in range(num_workers):
        passes, began_at = [], []
        for number in range(8):
            share = prefill if worker == 0 and number % 2 else decode
            rate = 5.0 * sum(number - 0.15 < at < number - 0.05 for at in came_at)
            beside = Beside(bool(share.prefill_tokens), num_workers, rate)
            seconds = TRUTH.seconds(*share) * LOSSES.stretch(beside)
            passes.append(MeasuredPass(share, seconds))
            began_at.append(number - seconds / 2)
        records.append(WorkerRecord({}, passes, began_at))
    seen = [Seen(0.1, None, 0.5, at + 0.5) for at in came_at]
    sent = [Sent(1000.0 + at, 1000.1 + at) for at in came_at]
    return LiveRun(LiveLoad(seen, sent, 0, 0.0), records)


def test_what_passes_lose_on_a_shared_host_is_found_again() -> None:
    runs = [shared_run(1, 1.9, 4.9), shared_run(2, 2.9, 2.91), shared_run(3, 0.9)]
    alone, found = measure_sharing(runs, TRUTH, HopCosts(cores=2))
    assert alone == pytest.approx(1.0, abs=0.01)
    for name in ("decode_beside", "decode_crowded", "prefill_beside", "prefill_crowded"):
        assert getattr(found, name) == pytest.approx(getattr(LOSSES, name), abs=0.01), name
    assert found.per_request == pytest.approx(LOSSES.per_request, abs=1e-4)
    assert level(runs[2], TRUTH, found) == pytest.approx(1.0, abs=0.01)


def test_what_is_alone_on_a_host_tells_how_slow_the_machine_is(tmp_path: Path) -> None:
    fast = slower(replace(calibrated(tmp_path).profile, pass_time=TRUTH), 0.9).pass_time
    runs = [shared_run(1), shared_run(2), shared_run(3)]
    alone, found = measure_sharing(runs, fast, HopCosts(cores=2))
    assert alone == pytest.approx(1 / 0.9, rel=0.01)
    assert found.prefill_beside == pytest.approx(LOSSES.prefill_beside, abs=0.01)
    assert found.per_request == 0.0


def test_a_loss_below_nothing_is_none_and_the_others_are_fitted_without_it() -> None:
    quick = [
        replace(record, passes=[replace(p, seconds=0.9 * p.seconds) for p in record.passes])
        for record in shared_run(2).records[1:]
    ]
    alone, found = measure_sharing(
        [LiveRun(NO_LOAD, quick), shared_run(1), shared_run(3)], TRUTH, HopCosts(cores=2)
    )
    assert alone > 0.9
    assert min(found.decode_beside, found.prefill_beside, found.per_request) >= 0.0


def test_a_loss_that_no_pass_had_stays_unknown() -> None:
    _, found = measure_sharing([shared_run(1), shared_run(2)], TRUTH, HopCosts(cores=2))
    assert found.decode_crowded is found.prefill_crowded is None
    assert found.stretch(Beside(False, 4)) == pytest.approx(2.0 + found.decode_beside)


def test_messages_wait_where_no_core_is_free() -> None:
    runs = [shared_run(2, 0.5), shared_run(1, 0.5)]
    epoch = runs[0].load.epoch
    assert epoch == pytest.approx(1000.0)
    spans = [Span("submit", epoch + n, LOSSES.submit + LOSSES.wait) for n in range(8)]
    spans += [Span("dispatch", epoch + 0.5, LOSSES.dispatch), Span("token", epoch, 9.0)]
    alone = [Span("submit", epoch + 1, LOSSES.submit)]
    hops = replace(LOSSES, wait=0.0)
    found = measure_wait([(runs[0], spans), (runs[1], alone)], hops)
    assert found.wait == pytest.approx(LOSSES.wait)
    assert measure_wait([(runs[1], alone)], hops).wait == 0.0


def test_a_live_load_is_kept_and_read_back(tmp_path: Path) -> None:
    load = LiveLoad([Seen(0.1, None, 1.0, 5.0), None], [Sent(1.5, 1.6), None], 3, 17.5)
    assert kept(tmp_path) is None
    keep(load, tmp_path)
    assert kept(tmp_path) == load


def test_a_folder_with_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    rows = poisson(4.0, 20, 3)
    deployment = LiveDeployment(LiveModel("mini"), "vllm-like", ALONE)
    note_asked(deployment, poisson(4.0, 30, 3), tmp_path)
    note_asked(deployment, rows, tmp_path)  # that one was never run
    keep(LiveLoad([], [], 0, 0.0), tmp_path)
    note_asked(deployment, rows, tmp_path)
    with pytest.raises(HeadwayError, match=r"other requests: give --keep a folder of its own"):
        note_asked(deployment, poisson(4.0, 20, 4), tmp_path)
    with pytest.raises(HeadwayError, match="other model, preset"):
        note_asked(replace(deployment, served=LiveModel("other"), preset="star"), rows, tmp_path)
    (tmp_path / "asked.json").unlink()
    with pytest.raises(HeadwayError, match="other model"):
        note_asked(deployment, rows, tmp_path)


def test_hops_of_a_load_with_a_failed_request_are_not_measured() -> None:
    with pytest.raises(HeadwayError, match="1 of 2 requests failed"):
        spans_of([], [Sent(1.0, 1.1), None])


def test_a_file_that_is_no_record_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(json.dumps({"worker": WORKER}) + '\n{"seconds": 1}\n')
    with pytest.raises(HeadwayError, match=r"w\.jsonl is no record"):
        read_records(tmp_path)


def test_without_a_pass_there_is_nothing_to_fit(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(json.dumps({"worker": WORKER}) + "\n")
    with pytest.raises(HeadwayError, match="no worker recorded a pass"):
        read_records(tmp_path)
