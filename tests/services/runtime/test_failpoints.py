"""Failpoints: what arms them, and what they refuse."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.runtime.failpoints import FAILPOINTS, VARIABLE, arm, failpoint
from services.runtime.rooms import child_environment, module_command

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


def test_an_unarmed_failpoint_does_nothing() -> None:
    arm("")
    failpoint("worker.kv.acked")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker.kv.lost=exit", "no failpoint; there are gateway.request.handed"),
        ("worker.kv.acked", "not of the form"),
        ("worker.kv.acked=explode", "not of the form"),
        ("worker.kv.acked=exit:2", "a chance is over 0 and at most 1"),
        ("worker.kv.acked=sleep", "not of the form"),
        ("worker.kv.acked=sleep:x", "not of the form"),
        ("worker.kv.acked=exit*0", "not of the form"),
    ],
)
def test_what_is_none_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=re.escape(said)):
        arm(text)


def test_it_strikes_as_often_as_its_count_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("services.runtime.failpoints.time.sleep", slept.append)
    arm(" worker.kv.acked=sleep:1.5*2 ; member.joined=exit:0.5 ;")
    for _ in range(3):
        failpoint("worker.kv.acked")
    failpoint("worker.kv.arrived")
    assert slept == [1.5, 1.5]


def test_a_service_refuses_a_wrong_failpoint_before_it_starts() -> None:
    ended = subprocess.run(
        module_command("services.scheduler"),
        env={**child_environment(), VARIABLE: "nowhere=exit"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "HEADWAY_FAILPOINTS has 'nowhere=exit'" in ended.stderr


def test_every_failpoint_stands_in_the_code_once_and_no_other_does() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "services").rglob("*.py")]
    found = [name for text in sources for name in re.findall(r'failpoint\("([a-z.]+)"\)', text)]
    assert sorted(found) == sorted(FAILPOINTS)


def test_the_docs_list_every_failpoint() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+\.[a-z.]+)` \| (.*) \|$", page, re.M)
    assert dict(rows) == dict(FAILPOINTS)
