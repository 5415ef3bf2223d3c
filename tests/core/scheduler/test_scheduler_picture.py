"""The leader's picture of the cluster, for people."""

from __future__ import annotations

from math import inf, isfinite

from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import Elected, WorkerGone, WorkerReported
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Constant, Costs, Source
from headway.cost.profile import load_profile
from headway.messages import (
    EndForward,
    HeldRequest,
    LoadReport,
    PassWork,
    RunningRequests,
    Snapshot,
    UsedConstant,
)
from headway.picture import MovePicture, WorkerPicture
from headway.request import Request, SamplingParams, StreamKey


def info(worker_id: str, role: Role, num_units: int = 1) -> WorkerInfo:
    return WorkerInfo(worker_id, "h:1", role, "m", num_units, 256, 16, 100, 1000, 64)


def led(*workers: WorkerInfo, settings: SchedulerSettings | None = None) -> SchedulerCore:
    """A leader to which these workers have reported, empty."""
    core = SchedulerCore(settings)
    core.handle(Elected(5, tuple(w.worker_id for w in workers)), now=0.0)
    for worker in workers:
        loads = tuple(UnitLoad(unit, 0, 0, 0, 100) for unit in range(worker.num_units))
        core.handle(WorkerReported(worker.worker_id, Snapshot(worker, loads)), now=0.0)
    return core


def shown(core: SchedulerCore, worker_id: str) -> WorkerPicture:
    (found,) = (w for w in core.pictures.draw().workers if w.worker_id == worker_id)
    return found


def test_a_worker_is_shown_with_its_units_added_up() -> None:
    core = led(info("d", Role.DECODE, 2))
    loads = (UnitLoad(0, 0, 2, 320, 80, 7), UnitLoad(1, 0, 1, 160, 90))
    core.handle(WorkerReported("d", EndForward(1, 0.0, (), loads)), now=1.0)
    worker = shown(core, "d")
    assert (worker.num_running, worker.kv_tokens, worker.host_tokens) == (3, 480, 7)
    assert (worker.num_blocks, worker.num_used_blocks, worker.num_promised_blocks) == (200, 30, 0)
    assert (worker.pass_time, worker.ahead_tokens) == (0.0, ())


def test_a_request_on_its_way_is_shown_as_a_move_and_its_blocks_as_promised() -> None:
    core = led(info("p", Role.PREFILL), info("d", Role.DECODE))
    request = Request("r", "m", tuple(range(40)), SamplingParams(), 0.0, stream_id=1)
    core.handle(request, now=1.0)
    assert core.pictures.draw().num_tracked == 1
    held = HeldRequest(request.key, "r", 0, 41, awaiting_handoff=True)
    end = EndForward(1, 0.01, (), (UnitLoad(0, 0, 0, 41, 97),), (held,))
    core.handle(WorkerReported("p", end), now=2.0)
    picture = core.pictures.draw()
    assert picture.moves == (MovePicture("r", "p", "d", 41, is_running=False),)
    assert (picture.num_moving, picture.fencing_token) == (1, 5)
    assert shown(core, "d").num_promised_blocks == 3
    assert shown(core, "d").num_arriving == 1


def test_pass_times_stand_beside_the_profiles_where_the_workers_have_one() -> None:
    profile = load_profile("llama-8b-a100")
    work = PassWork(4, 2.0, prefill_tokens=1000)
    predicted = profile.pass_time.base + profile.pass_time.per_prefill_token * 250
    for costs, expected in (
        (Costs.of([(Role.UNIFIED, profile)]), predicted),
        (Costs(profile=profile), 0.0),  # assumed for its velocities: of other machines
        (Costs(), 0.0),
    ):
        core = led(info("p", Role.PREFILL), settings=SchedulerSettings(costs=costs))
        end = EndForward(1, 0.5, (), (UnitLoad(0, 0, 0, 0, 100),), work=(work,))
        core.handle(WorkerReported("p", end), now=1.0)
        assert shown(core, "p").pass_time == 0.5
        assert abs(shown(core, "p").profile_pass_time - expected) < 1e-9


def test_the_constants_of_a_workers_order_are_shown_and_are_among_a_decisions_reasons() -> None:
    core = led(info("u", Role.UNIFIED))
    told = (UsedConstant("T", inf, "given"), UsedConstant("ρ", 0.4, "measured"))
    loads = (UnitLoad(0, 0, 0, 0, 100),)
    core.handle(WorkerReported("u", EndForward(1, 0.01, (), loads, constants=told)), now=1.0)
    core.handle(WorkerReported("u", EndForward(2, 0.01, (), loads)), now=2.0)
    assert shown(core, "u").constants == told
    core.handle(Request("r", "m", (1, 2), SamplingParams(), 2.0, stream_id=1), now=2.0)
    assert Constant("ρ of u", 0.4, Source.MEASURED) in core.decisions[-1].constants
    assert all(isfinite(each.value) for each in core.decisions[-1].constants)


def test_predictions_are_shown_where_workers_report_them_and_no_longer_than_the_worker() -> None:
    core = led(info("d", Role.DECODE, 2))
    key = StreamKey("g", 1)
    units = (
        RunningRequests(0, (key,), (40,), (99.0,), (50.0, 60.0)),
        RunningRequests(1, (), (), (), (5.0, 6.0)),
    )
    core.handle(WorkerReported("d", LoadReport(units, step_time=0.01)), now=1.0)
    worker = shown(core, "d")
    assert worker.ahead_tokens == (55.0, 66.0)
    assert worker.ahead_step == 0.01 * 128
    unknown = RunningRequests(0, (key,), (40,), (99.0,), (inf,))
    core.handle(WorkerReported("d", LoadReport((unknown,), step_time=0.01)), now=2.0)
    assert shown(core, "d").ahead_tokens == ()
    core.handle(WorkerGone("d", "it died"), now=3.0)
    assert core.pictures.draw().workers == ()
