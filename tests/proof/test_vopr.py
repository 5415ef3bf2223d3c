"""Whole clusters of the live services in seeds: they keep every promise, and reach every fault."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from weakref import ref

import pytest

from cli import main
from headway.errors import HeadwayError
from proof.vopr import clients
from proof.vopr.campaign import STANDARD, STATES, SeedCampaign, parse_seeds
from proof.vopr.cluster import ShellCluster
from proof.vopr.draw import draw
from proof.vopr.history import run
from proof.vopr.scenario import Asking, FaultKind, PlannedFault, SeedScenario, parse

ROOT = Path(__file__).resolve().parents[2]
STEP = 20


@pytest.fixture(scope="module")
def reached() -> Counter[str]:
    """Faults and states that the histories of this module have reached."""
    return Counter()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", STANDARD[::STEP])
def test_a_standard_seed_keeps_every_promise(first: int, reached: Counter[str]) -> None:
    campaign = SeedCampaign.of_seeds(range(first, first + STEP))
    broken = {h.scenario.seed: h.violations for h in campaign.run() if h.violations}
    reached += campaign.sometimes
    assert broken == {}


def test_the_standard_seeds_reach_every_fault_and_every_state(reached: Counter[str]) -> None:
    assert [state for state in STATES if not reached[state]] == []


def test_kv_is_lost_on_a_slow_link_that_breaks_often() -> None:
    """One seed of a hundred reaches that: too few for the standard ones."""
    slow = PlannedFault(FaultKind.DELAY, 0.2, 7.0, "w0", "w1", 0.05)
    cuts = (PlannedFault(FaultKind.CUT, 0.5 + 0.07 * n, 0.0, "w0", "w1") for n in range(60))
    requests = tuple(Asking(f"r{n}", 0.3 + 0.15 * n, 0, 40, 0, 12) for n in range(20))
    roles = ("prefill", "decode")
    history = run(SeedScenario(0, "sbs", 1, 1, roles, requests=requests, faults=(slow, *cuts)))
    assert history.sometimes["KV on its way is lost"]
    assert history.violations == []


FOUND: tuple[int, ...] = (16, 99, 212, 323, 338, 437, 552, 623, 660, 677, 727, 805, 946, 1163)
FOUND += (1704, 1855, 2910, 10005, 10023, 10046, 20060, 20356, 21711, 22320, 22632, 23105, 23221)
FOUND += (23296, 23526, 23639, 24815, 25078, 25306, 25817, 27018, 40028, 40798, 40966, 50477)
FOUND += (31256, 50536, 61306, 61882, 68236, 75551, 75585, 76005, 78408, 78658, 80664)
FOUND += (87202, 87658, 116888, 125874, 770011, 9000439)
"""Seeds of longer runs whose histories have broken a promise."""


@pytest.mark.timeout(600)
def test_a_seed_that_has_found_a_bug_keeps_every_promise() -> None:
    broken = {seed: history.violations for seed in FOUND if (history := run(draw(seed))).violations}
    assert broken == {}


ROUTERS = ("session-hash", "llm-d", "sglang", "preble", "dynamo")
SIMPLE = "dispatch=immediate,packing=round-robin,placement=round-robin"
OF_NO_PRESET = (*(f"dispatch={name}" for name in ROUTERS), "placement=min-cost", SIMPLE)


@pytest.mark.parametrize("policy", OF_NO_PRESET)
def test_a_policy_of_no_preset_keeps_every_promise(policy: str) -> None:
    histories = [run(replace(draw(seed, "sbs"), policy=policy)) for seed in (1, 3)]
    assert [each.violations for each in histories] == [[], []]


def test_the_same_seed_gives_the_same_log_line_by_line() -> None:
    first: list[str] = []
    second: list[str] = []
    run(draw(4), first)
    run(draw(4), second)
    assert first == second
    assert len(first) > 1000


def test_a_history_leaves_nothing_in_memory() -> None:
    left: list[ref[ShellCluster]] = []

    async def live(cluster: ShellCluster) -> None:
        cluster.begin()
        await asyncio.sleep(3.0)
        left.append(ref(cluster))

    run(draw(4), live=live)
    assert left[0]() is None


def test_an_error_in_a_client_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(asking: Asking) -> tuple[int, ...]:
        raise ZeroDivisionError

    monkeypatch.setattr(clients, "prompt_of", fails)
    assert "a shell raises nothing" in run(draw(4)).violations[0]


def test_the_same_seed_gives_the_same_history_in_any_process() -> None:
    call = "from proof.vopr import draw, history; print(history.run(draw.draw(0)).digest)"
    digests = {run(draw(0)).digest, run(draw(0)).digest}
    for hash_seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", call],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(said.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize("seed", [0, 17, 46])
def test_a_scenario_written_down_is_the_same_scenario(seed: int) -> None:
    assert parse(draw(seed).text(["a title"])) == draw(seed)


def test_a_line_that_says_nothing_is_refused() -> None:
    for text in ("", "seed x", "seed 1\nfault kind=earthquake at=1", "seed 1\nmagic 7"):
        with pytest.raises(HeadwayError):
            parse(text)


def test_seeds_are_given_as_a_range() -> None:
    assert parse_seeds("3..5") == range(3, 5)
    for text in ("3", "5..3", "a..b", "..4"):
        with pytest.raises(HeadwayError, match=r"A\.\.B"):
            parse_seeds(text)


def test_the_command_runs_seeds_and_scenario_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scenario.txt"
    path.write_text(draw(3).text(), encoding="utf-8")
    assert main(["vopr", "--scenario", str(path)]) == 0
    said = capsys.readouterr().out
    assert run(draw(3)).digest in said
    file = tmp_path / "figures.json"
    assert main(["vopr", "--seeds", "3..5", "--preset", "star", "--json", str(file)]) == 0
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert (figures["histories"], figures["failed"]) == (2, [])
    assert main(["vopr", "--scenario", str(tmp_path / "none.txt")]) == 2
    assert main(["vopr", "--seeds", "3..4", "--require-all"]) == 1
    assert "never reached" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 1400, 200))
def test_more_seeds_keep_every_promise(first: int) -> None:
    campaign = SeedCampaign.of_seeds(range(first, first + 200))
    assert {h.scenario.seed: h.violations for h in campaign.run() if h.violations} == {}
