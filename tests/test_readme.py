"""A newcomer can type every command of the README: those that bear no mark are run here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from services.local.store import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARKS = frozenset(("GPU", "vLLM", "network", "long"))
PATIENCE = 600.0
MODELS = '[[model]]\nname = "one"\npath = "models/headway-mini"\nunified = 1\n'
"""The reader's own ``models.toml``."""


class Typed(NamedTuple):
    """A command as it is typed, and the marks behind it."""

    line: str
    marks: frozenset[str]


def blocks(language: str) -> list[str]:
    """Return the README's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def typed() -> list[Typed]:
    """Return the commands of all blocks, in the README's order."""
    lines = "\n".join(blocks("sh")).replace("\\\n", "").splitlines()
    pairs = [re.split(r"\s+# ", line, maxsplit=1) for line in lines]
    return [Typed(line, marks_of(*comment)) for line, *comment in pairs]


def marks_of(comment: str = "") -> frozenset[str]:
    """Return what ``what it does [GPU, network]`` is marked with."""
    found = re.search(r"\[([^\]]+)\]$", f" {comment}".rstrip())
    return frozenset(found[1].split(", ")) if found else frozenset()


UNMARKED = [each.line for each in typed() if not each.marks]
UPS = [line for line in UNMARKED if line.startswith(".venv/bin/headway up ")]
OF_THE_CLUSTER = [
    line
    for line in UNMARKED
    if line.startswith("curl ") or re.match(r"\.venv/bin/headway (explain|trace|top)\b", line)
]
OTHERS = [line for line in UNMARKED[1:] if line not in (*UPS, *OF_THE_CLUSTER)]


def test_marks_are_explained_and_few_commands_bear_none_of_them() -> None:
    used = frozenset[str]().union(*(each.marks for each in typed()))
    assert used == MARKS
    assert all(f"`[{mark}]`" in README for mark in MARKS)
    assert UNMARKED[0] == "make up"
    assert len(UPS) >= 5
    assert len(OF_THE_CLUSTER) == 4
    assert OTHERS


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a fresh checkout, with its environment installed."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", "run"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "models.toml").write_text(MODELS, encoding="utf-8")
    return folder


class Started(NamedTuple):
    """A cluster that serves in a folder."""

    folder: Path
    port: int


@pytest.fixture(scope="module")
def cluster(checkout: Path) -> Iterator[Started]:
    """What the README's first command starts."""
    port = free_port(2)
    with serving(checkout, f"{UNMARKED[0]} ARGS='--port {port}'", port):
        yield Started(checkout, port)


def environment() -> dict[str, str]:
    """Return the environment of somebody who has set nothing of ours."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADWAY_", "PYTHONPATH", "PYTEST"))
    }


def shell(line: str, folder: Path, port: int) -> str:
    """Run a line to its end in a shell; return what it printed."""
    line = line.replace(":8000", f":{port}").replace(":9000", f":{port}")
    line = line.replace("make ", "make -o .venv/.serves -o .venv/.tests ")
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@contextmanager
def serving(folder: Path, line: str, port: int) -> Iterator[None]:
    """Run a line that serves until Ctrl-C, which a terminal sends to all of its processes."""
    line = line.replace("make ", "make -o .venv/.serves ")
    log = folder / f"up-{port}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {line}"],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        give_up_at = time.monotonic() + PATIENCE
        while f"HTTP on http://127.0.0.1:{port}" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up_at, log.read_text()
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE)
    assert process.returncode in (0, -signal.SIGINT), log.read_text()  # make ends by the signal
    assert "stopped" in log.read_text().splitlines()  # a make above this one may speak after it


def holds(answer: Any, shown: Any) -> bool:
    """Return whether an answer has what a shortened one shows."""
    if isinstance(shown, dict):
        return all(key in answer and holds(answer[key], value) for key, value in shown.items())
    if isinstance(shown, list):
        return all(holds(*pair) for pair in zip(answer, shown, strict=True))
    return bool(answer == shown)


def test_the_first_cluster_answers_as_shown_and_its_commands_tell_of_it(cluster: Started) -> None:
    curl, explain, trace, top = OF_THE_CLUSTER
    answer = json.loads(shell(curl, *cluster))
    assert holds(answer, json.loads(blocks("json")[0]))
    said = shell(explain.replace("chatcmpl-…", answer["id"]), *cluster)
    assert answer["id"] in said
    assert "dispatch by" in said
    shell(trace, *cluster)
    assert json.loads((cluster.folder / "trace.json").read_text())["traceEvents"]
    assert "prefill-1" in shell(top, *cluster)


@pytest.mark.parametrize(("number", "says"), [(0, "3, 5, 9"), (1, "3")])
def test_an_example_in_python_prints_the_models_answer(
    cluster: Started, number: int, says: str
) -> None:
    code = blocks("python")[number]
    code = code.replace(":8000", f":{cluster.port}").replace(":8001", f":{cluster.port + 1}")
    (cluster.folder / "example.py").write_text(code, encoding="utf-8")
    assert says in shell(".venv/bin/python example.py", *cluster)


@pytest.mark.slow
@pytest.mark.parametrize("line", UPS)
def test_a_cluster_of_another_kind_serves_and_ends(line: str, cluster: Started) -> None:
    port = free_port(2)
    line = f"{line.replace(':9000', f':{cluster.port}')} --port {port} --log-dir run-{port}"
    with serving(cluster.folder, line, port):
        shell(f"curl --fail --max-time 300 http://127.0.0.1:{port}/v1/models", cluster.folder, port)


@pytest.mark.slow
@pytest.mark.parametrize("line", OTHERS)
def test_a_command_runs_to_its_end(line: str, cluster: Started) -> None:
    """A load that is sent by the clock is shorter here, and decisions are timed once each."""
    line = line.replace("--num-requests 200", "--num-requests 20")
    shell(f"{line} --repeats 1" if line.endswith("bench policies") else line, *cluster)
