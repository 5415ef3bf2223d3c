"""``headway bench gateway``: real processes, counted and ended; peers left out with a reason."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.gateway.peers import PEERS, find_peers
from bench.runner.processes import Process, cpu_seconds, run_quietly
from bench.serve.client import Endpoint
from bench.serve.closed_loop import run_loop
from cli import main
from headway.errors import HeadwayError
from tests.fakes.bench_servers import ROOT, mock_backend, reply, saying

SPIN = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"
SLEEP = "import time\ntime.sleep(60)\n"
STAY = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


def until_said(process: Process, word: str) -> None:
    deadline = time.monotonic() + 30
    while word not in process.last_words():
        process.check()
        assert time.monotonic() < deadline, process.last_words()
        time.sleep(0.02)


def stand_in(peers_dir: Path, name: str, script: str) -> None:
    """A program where a peer's would be."""
    program = PEERS[name].program(peers_dir)
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mock_backend() as found:
        yield found


# --- the closed loop and the mock backend ---------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_every_caller_asks_until_the_time_is_up(url: str, stream: bool) -> None:
    asked = {"max_tokens": 3, "stream": stream, "messages": []}
    bodies = [json.dumps(asked).encode()] * 4
    loop = await run_loop(Endpoint.parse(url), "/v1/chat/completions", bodies, 0.2)
    assert len(loop.times) >= 4
    assert loop.took >= 0.2
    assert all(0.0 < each <= loop.took for each in loop.times)


async def test_a_refusal_ends_the_loop(url: str) -> None:
    with pytest.raises(HeadwayError, match="HTTP 404"):
        await run_loop(Endpoint.parse(url), "/nowhere", [b"{}"], 0.1)


@pytest.mark.parametrize("raw", [b"SSH-2.0\r\n", reply(b"ok")[:-1]])
async def test_a_broken_answer_ends_the_loop(raw: bytes) -> None:
    async with saying(raw) as address:
        with pytest.raises(HeadwayError, match=r"no HTTP|closed"):
            await run_loop(Endpoint.parse(address), "/", [b"{}"], 0.1)


# --- processes ------------------------------------------------------------------------


def test_the_cpu_of_a_process_is_counted_with_its_childrens(tmp_path: Path) -> None:
    child = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {SPIN + STAY!r}])\n"
    with Process("parent", [sys.executable, "-c", child + STAY], tmp_path) as process:
        deadline = time.monotonic() + 60
        while cpu_seconds(process.pid) < 0.4:
            process.check()
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_process_ends_with_all_that_it_started(tmp_path: Path) -> None:
    child = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
    script = child + "print('child', p.pid, flush=True)\nimport time\ntime.sleep(60)\n"
    with Process("parent", [sys.executable, "-c", script], tmp_path) as process:
        until_said(process, "child")
        child_pid = int(process.last_words().split()[-1])
    until(lambda: not _runs(child_pid))


def test_what_a_process_started_ends_where_its_parent_is_killed(tmp_path: Path) -> None:
    child = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
    started = child + "print('child', p.pid, flush=True)\nimport time\ntime.sleep(60)\n"
    parent = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from bench.runner.processes import Process\n"
        f"process = Process('inner', [sys.executable, '-c', {started!r}], Path(sys.argv[1]))\n"
        "while 'child' not in process.last_words():\n"
        "    time.sleep(0.02)\n"
        "print(process.last_words(), flush=True)\n" + STAY
    )
    command = [sys.executable, "-c", parent, str(tmp_path)]
    with Process("outer", command, tmp_path, {"PYTHONPATH": str(ROOT)}) as process:
        until_said(process, "ready")
        child_pid = int(process.last_words().split(" / ")[0].split()[-1])
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not _runs(child_pid))


def until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAY
    with Process("stubborn", [sys.executable, "-c", script], tmp_path) as process:
        until_said(process, "ready")
        process.stop(0.2)
        with pytest.raises(HeadwayError, match="stubborn ended"):
            process.check()


def test_a_dead_process_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = "import sys\nprint('no such option')\nsys.exit(3)"
    with (
        Process("dying", [sys.executable, "-c", script], tmp_path) as process,
        pytest.raises(HeadwayError, match=r"dying ended \(3\): no such option"),
    ):
        until_said(process, "never")


def test_a_quiet_command_says_only_why_it_failed() -> None:
    assert run_quietly([sys.executable, "-c", ""], 30.0) == ""
    said = run_quietly([sys.executable, "-c", "import sys; sys.exit('bad')"], 30.0)
    assert said == "exit 1: bad"
    assert "took over" in run_quietly([sys.executable, "-c", STAY], 0.2)
    assert "No such file" in run_quietly(["/no/such/program"], 1.0)


# --- the command ----------------------------------------------------------------------


def test_peers_that_are_not_there_are_left_out_with_the_way_to_get_them(tmp_path: Path) -> None:
    found, missing = find_peers("smg, litellm", tmp_path, installs=False, say=lambda line: None)
    assert found == []
    assert missing == dict.fromkeys(("smg", "litellm"), "not installed (--install-peers does)")


def test_an_unknown_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="nginx"):
        find_peers("nginx", tmp_path, installs=False, say=lambda line: None)


def test_ours_is_measured_beside_a_peer_and_one_that_dies_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = 'while [ "$1" != --port ]; do shift; done'
    mock = f"{port}\nexec {sys.executable} -m bench.gateway.mock_backend --port $2"
    stand_in(tmp_path, "smg", mock)
    stand_in(tmp_path, "litellm", "echo no licence >&2\nexit 7")
    file = tmp_path / "out.json"
    flags = ("--rounds", "2", "--seconds", "0.2", "--streams", "4", "--tokens", "8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert (
        main(["bench", "gateway", "--peers-dir", str(tmp_path), *flags, "--json", str(file)]) == 0
    )
    printed = capsys.readouterr().out
    assert "one token alone: P50, ms" in printed
    assert "left out: litellm: litellm ended (7): no licence" in printed
    written = json.loads(file.read_text(encoding="utf-8"))
    assert set(written["left_out"]) == {"vllm-router", "litellm"}
    runs = [run["system"] for run in written["runs"]]
    assert runs == ["none", "headway", "smg", "smg", "headway", "none"]
    none, ours = (run["figures"] for run in written["runs"][:2])
    assert ours.keys() - none.keys() == {"us_per_request", "us_per_token"}
    assert set(written["verdicts"][""]) == {"headway", "smg"}
