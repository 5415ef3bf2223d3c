"""The console in a real browser: what an operator sees of a live cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.fakes.browser import Visitor, needs_browser, visitor
from tests.fakes.films import served, short_film
from tests.fakes.local_cluster import LocalCluster

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
    needs_browser,
]
LONG = {"model": "headway-mini", "max_tokens": 400, "ignore_eos": True}
MOST_SENT = 12
PHONE: Any = {"width": 360, "height": 800}


async def fits(seen: Visitor) -> None:
    """Check that a phone's screen shows the view as wide as it is, with letters to read."""
    assert await seen.serious() == []
    assert await seen.width() <= PHONE["width"]
    assert await seen.small_letters() == []


async def ask(client: httpx.AsyncClient) -> str:
    """Send a request that takes long; return its id."""
    body: dict[str, Any] = {**LONG, "messages": [{"role": "user", "content": "Sort 5, 3, 9."}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return answer.headers["x-request-id"]


async def test_an_operator_sees_requests_their_lives_and_a_worker_that_dies_and_is_back(
    running: LocalCluster,
) -> None:
    async with (
        httpx.AsyncClient(base_url=running.base_url, timeout=600) as client,
        visitor(running.base_url) as seen,
    ):
        await seen.see("cluster")
        for worker_id in ("prefill-1", "decode-1", "decode-2"):
            await seen.find(f'[data-worker="{worker_id}"][data-state="serving"]')
        assert await seen.serious() == []

        await seen.see("requests")
        shown = asyncio.create_task(seen.find("[data-request] a"))
        sent: list[str] = []
        while not shown.done() and len(sent) < MOST_SENT:
            sent.append(await ask(client))
        await shown
        assert await seen.serious() == []

        await seen.see(f"life/{sent[0]}")
        await seen.find("td:has-text('draws tokens')")
        await seen.find("[data-delays]")
        await seen.find("text=Decisions about it")
        await seen.find(".pill:has-text('length')")
        assert await seen.serious() == []

        await seen.see("play")
        await seen.page.get_by_role("button", name="Send").click()
        await seen.find("text=It has ended")
        assert await seen.page.locator("[data-answer]").inner_text() != ""
        assert await seen.serious() == []

        await seen.see("whatif")
        await seen.page.get_by_label("Profile").fill("llama-8b-a100")
        await seen.page.get_by_label("Preset").fill("sbs")
        await seen.page.get_by_role("button", name="Replay").click()
        await seen.find("[data-what-if]")
        assert await seen.serious() == []

        await seen.see("scaling")
        await seen.find("main h2")
        assert await seen.serious() == []

        await seen.see("cluster")
        process = running.process("decode-1")
        process.kill()
        await seen.find('[data-worker="decode-1"][data-state="gone"]')
        assert await seen.serious() == []
        running.supervisor.add(process.spec)
        await seen.find('[data-worker="decode-1"][data-state="serving"]')
        assert seen.errors == []


async def test_the_page_is_readable_in_the_dark_and_on_a_phone(running: LocalCluster) -> None:
    phone = {"color_scheme": "dark", "is_mobile": True, "has_touch": True}
    async with visitor(running.base_url, **phone) as seen:
        await seen.page.set_viewport_size(PHONE)
        await seen.see("cluster")
        await seen.find("[data-worker]")
        await fits(seen)
        await seen.see("play")
        await seen.page.get_by_role("button", name="Send").click()
        await seen.find("text=It has ended")
        assert await seen.page.locator("svg.line").count() == 1
        await fits(seen)
        await seen.page.get_by_role("link", name="its life").click()
        await seen.find("[data-delays]")
        assert await seen.page.locator("svg.line").count() == 1
        await fits(seen)
        for view in ("requests", "whatif", "scaling"):
            await seen.see(view)
            await seen.find("main *")
            await fits(seen)
        assert seen.errors == []


async def test_every_output_of_a_call_has_its_life_on_a_narrow_screen(
    running: LocalCluster,
) -> None:
    async with (
        httpx.AsyncClient(base_url=running.base_url, timeout=600) as client,
        visitor(running.base_url) as seen,
    ):
        await seen.page.set_viewport_size(PHONE)
        body = {**LONG, "prompt": "Sort 5, 3, 9.", "n": 2, "max_tokens": 20}
        for _ in range(2):
            answer = await client.post(
                "/v1/completions", json=body, headers={"x-request-id": "mine"}
            )
            assert answer.status_code == 200
        await seen.see("life/mine")
        await seen.find("text=Output 2 of 2")
        await seen.find("[data-older]:has-text('1 older one')")
        assert await seen.page.locator("[data-output] svg.line").count() == 2
        await fits(seen)
        await seen.see("life/" + answer.json()["id"])
        await seen.find("text=Output 2 of 2")
        assert seen.errors == []


async def test_the_same_page_shows_a_simulated_run() -> None:
    film, run = await asyncio.to_thread(short_film)
    gone = next(
        place
        for place, frame in enumerate(film.frames)
        if frame["workers"].get("decode-2", {}).get("state") == "gone"
    )
    with served(film, run) as server:
        async with visitor(server.url.removesuffix("/console")) as seen:
            await seen.see("cluster")
            await seen.find("text=◆ simulated")
            await seen.find('[data-worker="decode-2"]')
            slider = seen.page.locator("input[type=range]")
            await slider.fill(str(gone))
            await slider.dispatch_event("change")
            await seen.find('[data-worker="decode-2"][data-state="gone"]')
            assert await seen.serious() == []
            await seen.see(f"life/{run.lives[0].request_id}")
            await seen.find("td:has-text('draws tokens')")
            await seen.find("[data-delays]")
            await seen.see("play")
            await seen.find("text=A simulated run answers nothing.")
            assert seen.errors == []
