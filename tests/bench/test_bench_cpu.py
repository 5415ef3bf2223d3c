"""``headway bench cpu``: the same load for every preset, and time a token by kind of process."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.demo.cpu import CpuRun, CpuSetting
from cli.bench import cpu
from headway.errors import HeadwayError
from services.local.options import WorkerCounts


def test_a_seed_offers_the_same_requests_at_the_same_instants() -> None:
    setting = CpuSetting("models/m", WorkerCounts(1, 1), 4, 2.0, 40, 0.02, Path("run"))
    plan = setting.plan(1)
    assert plan == setting.plan(1)
    assert plan != setting.plan(2)
    instants = [each.arrival_at for each in plan.requests]
    assert instants == sorted(instants)
    assert instants[-1] <= 20.0


def test_a_table_has_every_kind_of_process_and_the_change_of_the_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def a_run(preset: str, seed: int, gateway: float) -> CpuRun:
        seconds = {"gateway-0": gateway, "decode-0": 0.3, "decode-1": 0.5}
        return CpuRun(preset, seed, seconds, 1000)

    runs = [a_run("a", 1, 0.2), a_run("b", 1, 0.3), a_run("b", 2, 0.4), a_run("a", 2, 0.2)]
    assert runs[0].ms_per_token == pytest.approx(1.0)
    cpu._print(["a", "b"], runs)
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines()[3:6]] == [
        ["decode", "800", "800"],
        ["gateway", "200", "350"],
        ["all", "1000", "1150"],
    ]
    assert "b against a: median +15.0% (+10.0% to +20.0%) in 2 pairs" in said


@pytest.mark.parametrize("given", [["--presets", "headway"], ["--rate", "0"], ["--decode", "99"]])
def test_what_cannot_be_measured_is_refused(given: list[str]) -> None:
    parser = argparse.ArgumentParser()
    cpu.add_options(parser)
    with pytest.raises(HeadwayError):
        cpu.run(parser.parse_args(given))
