"""The line that ``headway up`` keeps changing on a terminal.

Without a terminal there is no such line, and the others are as they were.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cli.console_frames import Json, figures, frames
from headway.errors import HeadwayError
from services.local.supervised import SupervisedProcess
from services.runtime.essential import end_tasks

_INTERVAL = 0.5
_DOES = (
    ("warming_up", "warms up"),
    ("building_kernels", "builds its kernels, once on this machine"),
    ("loading_model", "loads its weights"),
)
"""Words for a process by the last of these events in its log."""
_STYLES = (
    ("died", "bold red"),
    ("did not stop", "red"),
    ("starting", "cyan"),
    ("serving", "green"),
)


class Screen:
    """The terminal of a local cluster. ``say`` prints a line above the one that changes."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self.is_terminal = self._console.is_terminal and sys.stdout.isatty()
        self._live: Live | None = None

    def say(self, line: str) -> None:
        """Print a line; the terminal may have gone, and the cluster stays."""
        with suppress(OSError):
            if self.is_terminal:
                self._console.print(Text(line, style=style_of(line)))
            else:
                print(line, flush=True)

    @asynccontextmanager
    async def following(
        self, processes: Sequence[SupervisedProcess], url: str
    ) -> AsyncIterator[None]:
        """Show what is waited for, then what is served, while the context lasts."""
        if not self.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            task = asyncio.create_task(self._follow(processes, url))
            try:
                yield
            finally:
                await end_tasks(task)
                self._live = None

    async def _follow(self, processes: Sequence[SupervisedProcess], url: str) -> None:
        while any(each.is_awaited for each in processes):
            self._show(waiting_line(processes))
            await asyncio.sleep(_INTERVAL)
        while True:
            try:
                async for frame in frames(url, query={"rows": "1"}):
                    self._show(serving_line(frame, url))
            except HeadwayError as error:
                self._show(Text(f"{url}/console  ({error.message})", style="dim"))
            await asyncio.sleep(_INTERVAL)

    def _show(self, line: Text) -> None:
        with suppress(OSError):
            if self._live is not None:
                self._live.update(line, refresh=True)


def style_of(line: str) -> str:
    """Return a line's colour by its state; "" for none."""
    return next((style for state, style in _STYLES if state in line), "")


def waiting_line(processes: Sequence[SupervisedProcess]) -> Text:
    """Return who is waited for, and what each does as far as its log says."""
    waiting = [f"{each.spec.service_id} {_does(each)}" for each in processes if each.is_awaited]
    text = Text("waiting: ", style="bold")
    return text.append(", ".join(waiting), style="not bold").append(
        "  (Ctrl-C stops the start)", style="not bold dim"
    )


def _does(process: SupervisedProcess) -> str:
    for line in reversed(process.last_lines()):
        for event, words in _DOES:
            if event in line:
                return words
    return "starts"


def serving_line(frame: Json, url: str) -> Text:
    """Return the figures of a cluster that serves; what is not known is left out."""
    text = Text("● ", style="green")
    text.append("  ".join(_parts(frame)), style="default")
    return text.append(f"  {url}/console", style="cyan")


def _parts(frame: Json) -> Iterator[str]:
    latest = figures(frame)
    gateway = frame.get("gateway", {})
    yield f"{gateway.get('open', 0)} open"
    if (ended := latest.get("ended_per_s")) is not None:
        yield f"{ended:.1f} requests/s"
    if (tokens := latest.get("tokens_per_s")) is not None:
        yield f"{tokens:.0f} tokens/s"
    median, tail = latest.get("ttft_p50"), latest.get("ttft_p99")
    if median is not None and tail is not None:
        yield f"TTFT {median:.2f}/{tail:.2f} s"
    if (kept := latest.get("kept")) is not None:
        yield f"promises {100 * kept:.0f} %"
    gone = [name for name, card in frame.get("workers", {}).items() if card["state"] == "gone"]
    if gone:
        yield f"gone: {', '.join(gone)}"
    if decided := frame.get("scaling"):
        yield from _scaling(decided[-1])


def _scaling(decision: Json) -> Iterator[str]:
    """Yield the roles whose instances are not as many as wanted."""
    for role, wanted in decision["targets"].items():
        ready = decision.get("pools", {}).get(role, {}).get("ready", 0)
        if wanted != ready:
            yield f"{role} {ready}→{wanted}"
