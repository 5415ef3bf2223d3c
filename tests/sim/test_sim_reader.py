"""A simulated reader is shown what the gateway's pacer would show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.gateway.events import Delivery
from headway.core.gateway.pacing import Pacers
from headway.policies.pacing import Pace, Pacing, TokenPacerParams
from headway.policies.pacing.token_pacer import TokenPacer
from headway.presets import PRESETS
from headway.request import FinishReason, Request, SamplingParams
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.reader_pacing import display_times
from tests.fakes.sim_clusters import instance, poisson

TPOT = 0.1
CONDITIONS = Conditions(((instance(Role.PREFILL), 1), (instance(Role.DECODE), 2)))


class StepByStep:
    """The same pacer, whose closed form nobody knows."""

    paces = True

    def pace(self, tpot: float | None = None) -> Pace:
        return TokenPacer(TokenPacerParams(TPOT)).pace()


def paced(came_at: list[float]) -> list[float]:
    """The instants at which a gateway's core releases tokens, woken whenever it asks for it."""
    pacers, shown = Pacers(TokenPacer(TokenPacerParams(TPOT))), list[float]()
    pacers.open(Request("r", "m", (1,), SamplingParams(max_tokens=9), 0.0))
    for number, at in enumerate(came_at):
        while pacers.next_at is not None and pacers.next_at < at:
            now = pacers.next_at
            shown += [now] * len(pacers.release(now=now))
        ends = FinishReason.STOP if number == len(came_at) - 1 else None
        shown += [at] * len(pacers.pass_on([Delivery("r", 1, None, ends)], now=at))
    return shown


@given(st.lists(st.floats(0.0, 0.5), min_size=1, max_size=60))
def test_a_reader_sees_each_token_when_the_gateways_pacer_lets_it_go(gaps: list[float]) -> None:
    came_at = [float(at) for at in 3.0 + np.cumsum(gaps)]
    wanted = paced(came_at)
    for policy in (TokenPacer(TokenPacerParams(TPOT)), StepByStep()):
        assert display_times(policy, np.array(came_at)).tolist() == pytest.approx(wanted, abs=1e-12)


def test_no_token_is_shown_to_nobody() -> None:
    assert display_times(TokenPacer(), np.empty(0)).tolist() == []


def test_a_preset_that_paces_shows_its_readers_tokens_at_their_pace() -> None:
    requests = poisson(40, 4.0, 1)
    run = simulate(cluster_spec(PRESETS["pascal"], CONDITIONS), requests)
    plain = simulate(cluster_spec(PRESETS["pascal"].but({"pacing": "off"}), CONDITIONS), requests)
    came = {record.request_id: record for record in plain.records}
    num_held = 0
    for record in run.records:
        before, shown = came[record.request_id].instants(), record.instants()
        answer = record.num_reasoning_tokens
        assert shown[:answer].tolist() == before[:answer].tolist()
        assert (shown >= before).all()
        assert (shown[-1], shown[answer]) == (before[-1], before[answer])
        num_held += int(np.sum(shown > before))
        assert record.qoe(TPOT) == pytest.approx(came[record.request_id].qoe(TPOT))
    assert num_held > 100


def test_who_does_not_read_as_it_comes_is_not_paced() -> None:
    def pacing(is_read: bool) -> set[Pacing | None]:
        requests = [SimRequest(f"r{n}", n / 4, 10, 20, is_read=is_read) for n in range(5)]
        run = simulate(cluster_spec(PRESETS["pascal"], CONDITIONS), requests)
        return {record.pacing for record in run.records}

    assert pacing(False) == {None}
    assert None not in pacing(True)
