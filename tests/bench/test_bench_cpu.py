"""``headway bench cpu``: the same load for every preset, and time a token by kind of process."""

from __future__ import annotations

import argparse

import pytest

from cli.bench import cpu
from services.local.options import PolicyOptions


def parsed(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cpu.add_options(parser)
    return parser.parse_args(given)


def test_a_seed_offers_the_same_requests_at_the_same_instants() -> None:
    what = cpu.CpuComparison(parsed("--num-requests", "40"), [PolicyOptions("a")])
    plan = what.plan(1)
    assert plan == what.plan(1)
    assert plan != what.plan(2)
    instants = [each.arrival_at for each in plan.requests]
    assert instants == sorted(instants)
    assert instants[-1] <= 20.0


def test_time_a_token_is_by_kind_of_process_and_of_all() -> None:
    seconds = {"gateway": 0.2, "decode-1": 0.3, "decode-2": 0.5}
    found = cpu.us_per_token(seconds, 1000)
    assert found == pytest.approx({"gateway": 200, "decode": 800, "all": 1000})
    rows = {each.name for each in cpu.CpuComparison(parsed(), [PolicyOptions("a")]).figures}
    assert found.keys() <= rows
