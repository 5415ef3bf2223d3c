"""The load of a campaign: what it asks, and what its history makes of a cluster that lies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.gateway.emulated_worker import Running
from bench.serve.client import Client, Endpoint
from headway.request import FinishReason
from proof.chaos.answers import AnswerChoice, OnTokens, Refusal
from proof.chaos.campaign import CampaignPlan, ChaosCampaign
from proof.chaos.jobs import ChaosJob, make_jobs
from proof.chaos.load import Load
from proof.chaos.report import Report
from proof.checker import DIED, Checker, HistoryFault
from tests.fakes.gateway_harness import Cluster, cluster

PLAN = CampaignPlan(seconds=1.0, seed=3, kinds=(), streams=3, num_jobs=6, patience=30.0)


def load_on(found: Cluster, checker: Checker) -> Load:
    return Load(Endpoint.parse(found.url), make_jobs("tiny", 6, 1), checker, patience=30.0)


def test_the_same_seed_makes_the_same_jobs_of_every_kind() -> None:
    jobs = make_jobs("small", 12, 7)
    assert jobs == make_jobs("small", 12, 7)
    assert jobs != make_jobs("small", 12, 8)
    assert {job.kind for job in jobs[:6]} == {job.kind for job in jobs}
    assert {job.streams for job in jobs} == {True, False}
    assert max(job.num_choices for job in jobs) > 1
    assert any("seed" in job.fields for job in jobs)
    greedy = make_jobs("small", 12, 7, greedy=True)
    assert [job.kind for job in greedy] == [job.kind for job in jobs]
    assert not any(name in job.fields for job in greedy for name in ("seed", "presence_penalty"))
    assert {job.fields["temperature"] for job in greedy} == {0}


async def test_a_campaign_without_faults_compares_every_answer(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url) as found:
        campaign = ChaosCampaign(PLAN, "tiny", Endpoint.parse(found.url), lambda line: None)
        report = await campaign.run(None)
    assert report.holds, report.lines()
    assert report.num_answers > report.num_asked >= PLAN.num_jobs
    assert report.num_tokens > 100
    assert report.lines()[-1] == (
        f"every promise was kept: 0 faults, {report.num_answers} answers, "
        f"{report.num_tokens} tokens (seed 3)"
    )


async def test_answers_go_on_after_a_broken_token_stream(tmp_path: Path, store_url: str) -> None:
    async with cluster(tmp_path, store_url, delay=0.002) as found:
        checker = Checker()
        load = load_on(found, checker)
        await load.learn()
        asking = asyncio.create_task(load.ask_all())
        while not load.open or not any(each.num_reads for each in load.open.values()):
            await asyncio.sleep(0.005)
        found.emulated.drop_link("gateway-under-test")
        await asking
        assert checker.finish(load.now()) == []
        assert not load.broken


async def test_a_token_that_differs_is_found_with_its_history(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, store_url) as found:
        checker = Checker()
        load = load_on(found, checker)
        await load.learn()
        honest: Any = Running.next_token

        def lies(self: Running) -> tuple[int, FinishReason | None]:
            token_id, reason = honest(self)
            return (token_id + 1 if self.index == 5 else token_id), reason

        monkeypatch.setattr(Running, "next_token", lies)
        await load.ask_all()
        assert checker.summary.faults[HistoryFault.WRONG] >= PLAN.num_jobs
        report = Report(1)
        report.sum_up(load, checker)
        assert not report.holds
        assert any('"asked"' in line for line in report.broken)
        assert report.lines()[-1].startswith("FAILED: 0 faults")


@pytest.mark.parametrize("num_losses", [1, 2])
async def test_a_request_is_given_up_as_promised_once_two_workers_were_lost(
    num_losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker, lost = Checker(), [0]
    load = Load(Endpoint.parse("http://127.0.0.1:9"), make_jobs("t", 1, 1), checker, patience=30.0)
    load.count_losses = lambda: lost[0]

    async def answers(client: Client, job: ChaosJob, on_tokens: OnTokens) -> list[AnswerChoice]:
        on_tokens(0, [1])
        if checker.summary.num_requests:
            lost[0] += num_losses
            raise Refusal("INTERNAL", f"{DIED} 3 times")
        return [AnswerChoice([1, 2], "12", "stop")]

    monkeypatch.setattr("proof.chaos.load.read_answer", answers)
    await load.learn()
    await load.ask_all()
    load.close()
    report = Report(1)
    report.sum_up(load, checker)
    assert report.holds is (num_losses == 2)
    assert len(report.given_up) == (num_losses == 2)
