"""The gateway's pacer: answering tokens go at a reader's pace, and nothing is ever late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import Deliver, Delivery, Fail, GatewayAction, Release, Submit
from headway.core.gateway.events import SchedulerConnected as Connected
from headway.core.gateway.pacing import Pacers
from headway.core.gateway.settings import GatewaySettings, ModelSettings
from headway.core.reasoning import LEAD
from headway.messages import Placed, TokenBatch
from headway.policies.pacing import TokenPacerParams
from headway.policies.pacing.token_pacer import TokenPacer
from headway.request import FinishReason, Request, SamplingParams

END = 9  # of reasoning
SETTINGS = GatewaySettings(
    max_model_len=1000,
    request_timeout=60.0,
    pacing="token-pacer",
    pacing_params={"tpot": 0.1},
    end_of_reasoning=(END,),
)


def opened(
    core: GatewayCore, *, reasons: bool = False, is_read: bool = True, model: str = "m"
) -> Request:
    core.handle(Connected(), now=0.0)
    sampling = SamplingParams(max_tokens=100)
    actions = core.handle(
        Submit(Request("r", model, (1, 2), sampling, 0.0, reasons=reasons), is_read), now=0.0
    )
    request = next(a for a in actions if isinstance(a, Request))
    core.handle(Placed(request.key, "w", 0, Role.UNIFIED), now=0.0)
    return request


def batch(
    request: Request, first: int, token_ids: Sequence[int], end: FinishReason | None = None
) -> TokenBatch:
    count = len(token_ids)
    reasons = [None] * (count - 1) + [end]
    indices = range(first, first + count)
    return TokenBatch("w", [request.stream_id] * count, list(indices), token_ids, reasons, {})


def seen(actions: Sequence[GatewayAction]) -> list[int | None]:
    return [d.token_id for a in actions if isinstance(a, Deliver) for d in a.deliveries]


def test_a_burst_of_answering_tokens_is_released_at_the_readers_pace() -> None:
    core = GatewayCore("g", "g:1", SETTINGS)
    request = opened(core)
    assert seen(core.handle(batch(request, 0, [1, 2, 3]), now=1.0)) == [1]
    assert (core.pacers.num_in_hand, core.pacers.num_paced) == (2, 2)
    assert core.next_wakeup == pytest.approx(1.1)
    assert seen(core.wake(now=1.05)) == []
    assert seen(core.wake(now=1.1001)) == [2]
    assert seen(core.wake(now=1.2001)) == [3]
    assert core.pacers.num_in_hand == 0


def test_a_marker_of_several_tokens_is_found_across_passes() -> None:
    core = GatewayCore("g", "g:1", replace(SETTINGS, end_of_reasoning=(7, 8)))
    request = opened(core, reasons=True)
    assert seen(core.handle(batch(request, 0, [8, 7]), now=1.0)) == [8, 7]
    assert seen(core.handle(batch(request, 2, [8, 4, 5]), now=1.0)) == [8, 4]


def test_an_answer_without_thoughts_is_paced_as_soon_as_that_is_known() -> None:
    core = GatewayCore("g", "g:1", replace(SETTINGS, start_of_reasoning=(8,)))
    request = opened(core, reasons=True)
    first = [1] * (LEAD + 1)  # the last of them was the last chance to begin
    assert seen(core.handle(batch(request, 0, [*first, 2, 3]), now=1.0)) == [*first, 2]
    assert seen(core.wake(now=1.1001)) == [3]


def test_thoughts_that_begin_are_not_paced() -> None:
    core = GatewayCore("g", "g:1", replace(SETTINGS, start_of_reasoning=(8,)))
    request = opened(core, reasons=True)
    tokens = [1, 8, *[2] * 10]
    assert seen(core.handle(batch(request, 0, tokens), now=1.0)) == tokens


def test_a_client_that_leaves_leaves_nothing_in_hand() -> None:
    core = GatewayCore("g", "g:1", SETTINGS)
    request = opened(core)
    core.handle(batch(request, 0, [1, 2, 3]), now=1.0)
    core.handle(Release("r"), now=1.01)
    assert core.pacers.num_in_hand == 0
    assert seen(core.wake(now=2.0)) == []


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0, 0.5)), min_size=1, max_size=20),
    st.floats(0.01, 0.3),
)
def test_every_token_comes_once_in_order_and_never_beyond_its_due_time(
    passes: list[tuple[int, float]], tpot: float
) -> None:
    pacers = Pacers(TokenPacer(TokenPacerParams(tpot)))
    pacers.open(Request("r", "m", (1,), SamplingParams(max_tokens=9), 0.0))
    arrived: list[float] = []
    released: list[tuple[int | None, float]] = []
    now = 0.0
    for count, pause in passes:
        until = now + pause
        while pacers.next_at is not None and pacers.next_at <= until:
            at = pacers.next_at
            released += [(d.token_id, at) for d in pacers.release(now=at)]
        now = until
        first = len(arrived)
        arrived += [now] * count
        new = [Delivery("r", first + i, None, None) for i in range(count)]
        released += [(d.token_id, now) for d in pacers.pass_on(new, now=now)]
    released += [(d.token_id, now) for d in pacers.end("r")]
    assert [token_id for token_id, _ in released] == list(range(len(arrived)))
    assert pacers.num_in_hand == 0
    for k, (_, at) in enumerate(released):
        assert at <= max(arrived[k], arrived[0] + k * tpot) + 1e-9


def test_each_model_has_its_own_markers() -> None:
    own = {"n": ModelSettings(1000, end_of_reasoning=(7,)), "silent": ModelSettings(1000)}
    paced: dict[str, int] = {}
    for model in ("m", "n", "silent"):
        core = GatewayCore("g", "g:1", replace(SETTINGS, models=own))
        request = opened(core, reasons=True, model=model)
        actions = core.handle(batch(request, 0, [1, 7, END, 2, 3, 4]), now=1.0)
        paced[model] = len(seen(actions))
    assert paced["silent"] < paced["n"] < paced["m"]  # reasoning is not held


def test_each_model_has_its_own_limit_of_length() -> None:
    settings = replace(SETTINGS, models={"n": ModelSettings(101)})
    for model, is_refused in (("m", False), ("n", True)):
        core = GatewayCore("g", "g:1", settings)
        asked = Request("r", model, (1, 2), SamplingParams(max_tokens=100), 0.0)
        actions = core.handle(Submit(asked, True), now=0.0)
        assert any(isinstance(action, Fail) for action in actions) == is_refused
