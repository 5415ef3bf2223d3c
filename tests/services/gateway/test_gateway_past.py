"""The curves and lives of a gateway outlive its process, in the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.console.recent import EndedRequest, RecentRequests
from headway.core.gateway.lives import Lives
from headway.life.parts import parts_of
from headway.life.record import Crowd, Instants, LifeRecord, TokenTally
from services.gateway.past import MOST_LIVES, KeptPast
from services.runtime.clock import Clock
from services.runtime.store import Store
from tests.fakes.gateway_harness import cluster


def lasting(life: LifeRecord, request_id: str, length: int) -> LifeRecord:
    """Return a life of another request, so many microseconds long."""
    instants, parts = Instants(end=length), parts_of((), length)
    return replace(life, request_id=request_id, instants=instants, parts=parts)


async def test_the_next_process_of_a_gateway_has_the_curves_and_the_lives_of_the_last(
    tmp_path: Path, store_url: str
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 4}
    async with cluster(tmp_path, store_url) as first, first.http() as client:
        answer = await client.post("/v1/chat/completions", json=body)
        asked = f"/explain/{answer.headers['x-request-id']}"
        life = (await client.get(asked)).json()["life"]
        recent, now = first.service.console.feed.recent, first.service.now()
        row = [float(int(now) - 5), 2.0, 1.0, 4.0, 3, 2, 0.5, 0.5, None]
        recent.restore([row], ())
        ended = recent.last_minute(now)
    assert life["status"] == "length"
    async with cluster(tmp_path, store_url) as second, second.http() as client:
        recent = second.service.console.feed.recent
        assert recent.history[0] == row
        assert recent.last_minute(second.service.now()) == ended
        assert (await client.get(asked)).json()["life"] == life


async def test_of_a_minute_the_longest_lives_are_kept_and_all_that_the_figures_need(
    store: Store,
) -> None:
    clock, num = Clock(), MOST_LIVES + 5
    life = LifeRecord(
        "",
        "g",
        "m",
        clock.now(),
        "stop",
        "",
        "",
        "",
        True,
        TokenTally(1),
        Crowd(),
        Instants(end=0),
        (),
        (),
    )
    writer = KeptPast(store, "g", RecentRequests(clock.now()), Lives(), clock, 60.0)
    await writer.start()
    for number in range(num):
        now = clock.now()
        ended = EndedRequest(
            now, now, "stop", "", "", 1, 1, 0, None, None, None, None, f"r{number}"
        )
        writer.ended(ended, lasting(life, f"r{number}", number + 1))
    await writer.stop()
    recent, lives = RecentRequests(clock.now()), Lives()
    await KeptPast(store, "g", recent, lives, clock, 60.0).start()
    assert len(recent.last_minutes(clock.now())) == num
    assert lives.find("r4", clock.now()) is None
    assert lives.find("r5", clock.now()) is not None
