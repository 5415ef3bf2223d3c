"""A real browser for tests of the console: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PATIENCE = 180_000.0  # milliseconds
_SMALL_LETTERS = """[...document.querySelectorAll("svg text")].filter((text) => {
  const box = text.getBoundingClientRect(), whole = text.ownerSVGElement.getBoundingClientRect();
  return box.height < 11 || box.left < whole.left - 2 || box.right > whole.right + 2;
}).map((text) => text.textContent)"""
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser: Debian's package chromium is not installed here"
)


@dataclass
class Visitor:
    """Somebody who looks at the console; ``errors`` are what the browser complains of."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)

    async def see(self, view: str) -> None:
        """Open a view."""
        await self.page.goto(f"{self.url}/console#/{view}")
        await self.page.wait_for_selector("nav a[aria-current]")

    async def find(self, selector: str, *, state: Any = "visible") -> None:
        """Wait until it is there."""
        await self.page.wait_for_selector(selector, state=state)

    async def width(self) -> int:
        """Return how wide the page is in pixels: wider than its window, it has to be scrolled."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth"))

    async def small_letters(self) -> list[str]:
        """Return the words of drawings that are too small to read, or outside of their drawing."""
        return [str(each) for each in await self.page.evaluate(_SMALL_LETTERS)]

    async def serious(self) -> list[str]:
        """Return what axe finds serious or critical on the page as it is."""
        await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("axe.run()")
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]


@asynccontextmanager
async def visitor(url: str, **options: Any) -> AsyncIterator[Visitor]:
    """Start a browser with a fresh page; ``options``: of the page, such as its colour scheme."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        page = await browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        page.set_default_timeout(PATIENCE)
        found = Visitor(page, url)
        page.on("pageerror", lambda error: found.errors.append(str(error)))
        page.on(
            "console", lambda said: found.errors.append(said.text) if said.type == "error" else None
        )
        try:
            yield found
        finally:
            await browser.close()
