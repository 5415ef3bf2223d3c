"""Requests that nobody can serve: on both fidelities they are lost, and none is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cli import main
from headway.cluster import Role
from headway.presets import PRESETS
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.records import Record
from headway.sim.views.run import simulate_views
from tests.fakes.sim_clusters import instance

BOTH = [(Role.PREFILL, 6000), (Role.DECODE, 9008)]
UNIFIED = [(Role.UNIFIED, 6000)]


def lost(records: Sequence[Record]) -> list[str]:
    """Ids of the requests that were lost; each has a reason."""
    assert all(record.finished != bool(record.error) for record in records)
    return sorted(record.request_id for record in records if not record.finished)


@pytest.mark.parametrize(
    ("roles", "prompt", "output", "is_lost"),
    [
        (UNIFIED, 5000, 1000, False),
        (UNIFIED, 5000, 1001, True),
        (UNIFIED, 3_000_000, 10, True),
        (BOTH, 5999, 3000, False),
        (BOTH, 6001, 10, True),
        (BOTH, 5900, 3200, True),
        ([(Role.PREFILL, 6000), (Role.UNIFIED, 8000)], 7000, 900, False),
        ([(Role.PREFILL, 6000), (Role.DECODE, 9008), (Role.UNIFIED, 800)], 6100, 900, True),
        ([(Role.PREFILL, 6000)], 100, 2, True),
        ([(Role.DECODE, 6000)], 100, 2, True),
    ],
)
def test_a_request_that_nobody_can_hold_is_lost_on_both(
    roles: Sequence[tuple[Role, int]], prompt: int, output: int, is_lost: bool
) -> None:
    kinds = [(instance(role, kv_capacity_tokens=tokens), 1) for role, tokens in roles]
    spec = cluster_spec(PRESETS["vllm-like"], Conditions(kinds))
    small = 1 if len(roles) == 1 and roles[0][0] is Role.PREFILL else 10
    asked = [SimRequest("first", 0.0, 100, small), SimRequest("last", 0.3, 100, small)]
    asked.insert(1, SimRequest("large", 0.1, prompt, output))
    for records in (simulate(spec, iter(asked)).records, simulate_views(spec, asked).records):
        assert sorted(r.request_id for r in records) == ["first", "large", "last"]
        nobody_decodes = roles[0][0] is Role.DECODE
        expected = ["first", "large", "last"] if nobody_decodes else ["large"] * is_lost
        assert lost(records) == expected


def test_a_request_that_decodes_nowhere_keeps_its_first_token() -> None:
    spec = cluster_spec(PRESETS["sbs"], Conditions([(instance(Role.PREFILL), 1)]))
    asked = [SimRequest("one", 0.0, 100, 1), SimRequest("two", 0.1, 100, 2)]
    for run in (simulate(spec, iter(asked)), simulate_views(spec, asked)):
        two = next(record for record in run.records if record.request_id == "two")
        assert (two.finished, two.num_tokens) == (False, 1)
        assert two.ttft is not None


def test_the_command_counts_what_was_lost_over_views(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{n / 10},{3_000_000 if n == 7 else 300},9" for n in range(10)]
    (tmp_path / "trace.csv").write_text(
        "\n".join(["arrival_at,prompt_tokens,output_tokens", *rows])
    )
    (tmp_path / "small.toml").write_text(
        '[[instances]]\nrole = "unified"\nprofile = "llama-8b-h100"\n'
        '[workload]\ntrace = "trace.csv"\n[slo]\nttft = 1.0\n'
    )
    command = ["simulate", str(tmp_path / "small.toml"), "--preset", "vllm-like"]
    for fidelity in ("cores", "policies"):
        table = tmp_path / f"{fidelity}.json"
        assert main([*command, "--fidelity", fidelity, "--json", str(table)]) == 0
        assert '"num_requests": 10' in table.read_text()
        assert '"attainment": 0.9' in table.read_text()
    assert "lost" in capsys.readouterr().out
