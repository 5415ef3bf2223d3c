"""Whatever workers say, the gateway's core goes on, and other workers' answers are untouched."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import Deliver, Fail, GatewayAction, SchedulerConnected, Submit
from headway.core.gateway.settings import GatewaySettings
from headway.errors import Code
from headway.messages import Lost, Placed, StreamFailure, TokenBatch
from headway.request import FinishReason, Request, SamplingParams, StreamKey

HOSTILE, HONEST = "hostile", "honest"
STREAMS = st.sampled_from([1, 2, 3, 4, 2**64 - 1])
INDICES = st.one_of(st.integers(0, 8), st.just(2**32 - 1))
REASONS = st.one_of(st.none(), st.none(), st.sampled_from(FinishReason))
ENTRIES = st.lists(st.tuples(STREAMS, INDICES, st.integers(0, 2**32 - 1), REASONS), max_size=8)
FAILURES = st.lists(
    st.builds(
        StreamFailure, STREAMS, st.sampled_from(FinishReason), st.just("x"), st.sampled_from(Code)
    ),
    max_size=2,
)


@st.composite
def batches(draw: st.DrawFn) -> TokenBatch:
    entries = draw(ENTRIES)
    cached = {place: 3 for place in range(len(entries)) if draw(st.booleans())}
    failures = draw(FAILURES)
    return TokenBatch(
        draw(st.sampled_from([HOSTILE, "stranger"])),
        [stream_id for stream_id, _, _, _ in entries],
        [index for _, index, _, _ in entries],
        [token_id for _, _, token_id, _ in entries],
        [reason for _, _, _, reason in entries],
        {},
        failures,
        num_cached=cached,
    )


KEYS = STREAMS.map(lambda stream_id: StreamKey("g", stream_id))
WORDS = st.one_of(
    st.builds(
        Placed, KEYS, st.just(HOSTILE), st.just(0), st.just(Role.UNIFIED), st.just("stranger")
    ),
    st.builds(Lost, st.tuples(KEYS), st.just("gone")),
)
TURNS = st.lists(st.one_of(batches(), batches(), WORDS, st.just(None)), max_size=40)


def opened(pacing: str) -> tuple[GatewayCore, list[GatewayAction]]:
    """Three requests: the first one is on the honest worker, the others are on the hostile one."""
    core = GatewayCore("g", "g:1", GatewaySettings(max_model_len=100, pacing=pacing))
    core.handle(SchedulerConnected(), now=0.0)
    for name in "abc":
        request = Request(name, "m", (1,), SamplingParams(max_tokens=6), 0.0)
        core.handle(Submit(request), now=0.0)
    for stream_id, worker_id in ((1, HONEST), (2, HOSTILE), (3, HOSTILE)):
        core.handle(Placed(StreamKey("g", stream_id), worker_id, 0, Role.UNIFIED), now=0.0)
    return core, []


@settings(max_examples=400, deadline=None)
@given(turns=TURNS, pacing=st.sampled_from(["off", "token-pacer"]))
def test_no_batch_makes_the_core_raise_or_reaches_an_answer_of_another_worker(
    turns: list[TokenBatch | Placed | Lost | None], pacing: str
) -> None:
    core, actions = opened(pacing)
    now, num_sent = 0.0, 0
    for turn in turns:
        now += 0.3
        actions += core.wake(now=now)
        if turn is None and num_sent < 6:
            actions += core.handle(honest(num_sent), now=now)
            num_sent += 1
        elif turn is not None and 1 not in streams_of(turn):
            actions += core.handle(turn, now=now)
    for index in range(num_sent, 6):
        actions += core.handle(honest(index), now=now)
    read = [d for a in actions if isinstance(a, Deliver) for d in a.deliveries]
    assert [d.token_id for d in read if d.request_id == "a"] == [10, 11, 12, 13, 14, 15]
    assert not any(isinstance(a, Fail) and a.request_id == "a" for a in actions)
    for name in "bc":
        ends = [d for d in read if d.request_id == name and d.finish_reason is not None]
        fails = [a for a in actions if isinstance(a, Fail) and a.request_id == name]
        assert len(ends) + len(fails) <= 1


def streams_of(turn: TokenBatch | Placed | Lost) -> set[int]:
    """The streams that the scheduler speaks of; a worker may speak of any."""
    if isinstance(turn, TokenBatch):
        return set()
    return {key.stream_id for key in (turn.keys if isinstance(turn, Lost) else (turn.key,))}


def honest(index: int) -> TokenBatch:
    end = FinishReason.LENGTH if index == 5 else None
    return TokenBatch(HONEST, [1], [index], [10 + index], [end], {})
