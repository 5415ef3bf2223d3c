"""What the terminal shows of a cluster: the line of ``headway up``, and ``headway top``."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli.console_frames import figures
from cli.top import picture
from cli.up_screen import Screen, serving_line, waiting_line
from headway.console.recent import COLUMNS
from services.local.forked import Template
from services.local.launch import LaunchingMachine
from services.local.process_spec import ProcessSpec
from services.local.supervised import SupervisedProcess

POINT = dict.fromkeys(COLUMNS, None) | {
    "at": 1.0,
    "ended_per_s": 2.0,
    "tokens_per_s": 320.4,
    "ttft_p50": 0.12,
    "ttft_p99": 0.5,
    "kept": 0.987,
}
CARD = {"role": "decode", "state": "serving", "batch": 3, "kv_used": 0.25, "queued_tokens": 0}
ROW = {"class": "", "tenant": "ann", "worker": "decode-1", "phase": "moving", "prompt": 40}
FRAME: dict[str, Any] = {
    "gateway": {"model": "mini", "preset": "sbs", "status": "ok", "open": 5, "waiting": 1},
    "point": [POINT[name] for name in COLUMNS],
    "leader": {"id": "scheduler-1", "term": 3},
    "workers": {"decode-1": CARD, "decode-2": {"role": "decode", "state": "gone"}},
    "requests": {
        "order": ["r-1"],
        "rows": {"r-1": {**ROW, "output": 7, "waited": 0.2, "slack": -1.5, "target": "decode-2"}},
    },
    "scaling": [{"targets": {"prefill": 1, "decode": 3}, "pools": {"prefill": {"ready": 1}}}],
}
EMPTY = {"gateway": {**FRAME["gateway"], "open": 0, "waiting": 0}}


def told(shown: object) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(shown)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


async def nowhere(spec: ProcessSpec, pid: int) -> str:
    return ""


def test_the_line_of_a_serving_cluster_has_its_figures_what_scales_and_the_pages_address() -> None:
    line = serving_line(FRAME, "http://h:1").plain
    for part in ("5 open", "2.0 requests/s", "320 tokens/s", "TTFT 0.12/0.50 s", "promises 99 %"):
        assert part in line
    assert "gone: decode-2" in line
    assert "decode 0→3" in line
    assert "prefill" not in line
    assert line.endswith("http://h:1/console")


def test_what_is_not_known_is_left_out() -> None:
    assert serving_line(EMPTY, "http://h:1").plain == "● 0 open  http://h:1/console"
    assert figures(EMPTY) == {}


@pytest.mark.parametrize(
    ("log", "does"),
    [
        ("", "starts"),
        ("loading_model model=m\n", "loads its weights"),
        ("loading_model model=m\nbuilding_kernels compiler=c++\n", "builds its kernels"),
        ("building_kernels\nwarming_up\n", "warms up"),
    ],
)
async def test_while_a_cluster_starts_the_line_says_what_is_waited_for(
    log: str, does: str, tmp_path: Path
) -> None:
    process = SupervisedProcess(
        ProcessSpec("worker", "decode-1"),
        tmp_path,
        print,
        nowhere,
        LaunchingMachine(Template(tmp_path)),
    )
    process.log_path.write_text(log)
    assert waiting_line([process]).plain.startswith(f"waiting: decode-1 {does}")
    process._settled.set()
    assert "decode-1" not in waiting_line([process]).plain
    await asyncio.sleep(0)


async def test_without_a_terminal_lines_are_as_they_are_and_nothing_else_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Screen()
    assert not screen.is_terminal
    async with screen.following([], "http://127.0.0.1:9"):
        screen.say("gateway      pid 7   serving [x]")
    assert capsys.readouterr().out == "gateway      pid 7   serving [x]\n"


def test_top_shows_workers_and_requests() -> None:
    shown = told(picture(FRAME))
    assert "leader scheduler-1" in shown
    for part in ("decode-1", "serving", "25 %", "gone", "r-1", "moving", "ann", "-1.5 s"):
        assert part in shown
    assert "decode-1 → decode-2" in shown


def test_top_says_who_does_not_answer() -> None:
    def said(**silent: float) -> str:
        return told(picture({**FRAME, "now": 100.0, "silent": silent}))

    assert "leader scheduler-1 does not answer, workers as they were 12" in said(leader=88.0)
    assert "the store does not answer" in said(store=99.0)
    assert "does not" not in said()


def test_top_says_what_it_does_not_know() -> None:
    shown = told(picture(EMPTY))
    assert "no leader" in shown
    assert "No worker is known." in shown
    assert "No request is open that fits." in shown


def with_session(name: str, **row: Any) -> dict[str, Any]:
    """A frame with one session; ``row``: changes of an idle one."""
    idle = {
        "session": name,
        "tenant": "ann",
        "turns": 4,
        "running": 0,
        "workers": ["prefill-1", "decode-2"],
        "why": "own; unit=prefill-1/3",
        "cached": 0.93,
        "began_at": 40.0,
        "idle_since": 97.0,
    }
    sessions = {"running": 0, "idle": 1, "rows": {"0": {**idle, **row}}}
    held = {"r-1": {"unit": "prefill-1/3", "hit": 900, "longest_wait": 1.5}}
    return {**FRAME, "now": 100.0, "sessions": sessions, "cluster": {"held": held}}


def test_top_shows_who_sits_where_and_why() -> None:
    shown = told(picture(with_session("agent-7")))
    assert "0 sessions with a turn now, 1 idle" in shown
    for part in ("agent-7", "prefill-1 → decode-2", "own; unit=prefill-1/3", "93 %", "60.0 s"):
        assert part in shown
    assert "idle 3.0 s" in shown


def test_top_says_which_unit_a_sessions_turn_waits_for() -> None:
    running = {"running": 1, "request": "r-1"}
    assert "waits for prefill-1/3" in told(picture(with_session("agent-7", **running)))
    other = told(picture(with_session("agent-7", **{**running, "request": "r-2"})))
    assert "waits for" not in other
    assert "turn runs" in other


def test_markup_in_a_sessions_name_is_shown_as_it_is_and_long_names_are_cut() -> None:
    assert "[bold red]x[/]" in told(picture(with_session("[bold red]x[/]")))
    shown = told(picture(with_session("y" * 256)))
    assert "y" * 39 + "…" in shown
    assert "y" * 40 not in shown
