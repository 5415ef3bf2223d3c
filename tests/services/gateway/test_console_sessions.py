"""Sessions on the console's page, in a real browser: names are text, whatever they look like."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from headway.picture import NO_PICTURE, HeldPicture
from tests.fakes.browser import needs_browser, visitor
from tests.fakes.gateway_harness import Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_browser]
MARKUP = '<img src=x onerror="document.title=1">'
BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 4}


async def test_the_page_shows_sessions_and_reads_no_markup_in_their_names(running: Cluster) -> None:
    async with running.http() as client, asyncio.TaskGroup() as group:
        done = await client.post("/v1/completions", json=BODY, headers={"x-session-id": MARKUP})
        assert done.status_code == 200
        running.emulated.paused = True
        waiting = group.create_task(
            client.post("/v1/completions", json=BODY, headers={"x-session-id": "waits"})
        )
        await until(lambda: len(running.emulated.submitted) == 2)
        held = HeldPicture(running.emulated.submitted[1].request_id, "p1", 3, 900, 1.5)
        running.emulated.picture = replace(NO_PICTURE, held=(held,), num_held=1)
        async with visitor(running.url) as seen:
            await seen.see("requests")
            await seen.find('[data-session="waits"] .pill:has-text("waits for p1/3")')
            row = seen.page.locator("[data-session]", has_text="<img src=x")
            assert await row.count() == 1
            assert await seen.page.locator("main img").count() == 0
            assert await seen.page.title() == "Requests · Headway"
            assert await seen.serious() == []
            assert seen.errors == []
            await seen.page.locator('input[name="session"]').fill("nobody's")
            await seen.page.locator('input[name="session"]').press("Enter")
            await seen.find("text=No open request matches.")
            await seen.page.set_viewport_size({"width": 360, "height": 800})
            assert await seen.width() <= 360
        running.emulated.paused = False
        running.emulated.hang_up()  # the next stream brings the request again
        assert (await waiting).status_code == 200
