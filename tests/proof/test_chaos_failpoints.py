"""Every failpoint strikes a real process once, between saving and acting: no answer is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench.serve.client import Endpoint
from cli import up
from proof.chaos.jobs import make_jobs
from proof.chaos.load import Load
from proof.chaos.rig import Rig
from proof.checker import Checker
from services.local.store import free_port
from services.runtime.failpoints import FAILPOINTS, VARIABLE
from services.runtime.rooms import child_environment
from tests.fakes.local_cluster import MODEL

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]

PATIENCE = 240.0
PROCESS = {
    "gateway": "gateway",
    "scheduler": "scheduler",
    "worker": "decode-1",
    "autoscaler": "autoscaler",
    "member": "decode-1",
}
"""The process that is restarted with a failpoint, by the failpoint's first word."""
AT_THE_SOURCE = ("worker.kv.acked",)
"""Failpoints of a worker that gives KV away: a prefiller."""
LIVE = [name for name in FAILPOINTS if not name.startswith("predictor.")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Rig, Load]]:
    port = free_port(2)
    options = up.parse(["--model", MODEL, "--port", str(port), "--drain-timeout", "5"])
    async with Rig(options, tmp_path_factory.mktemp("logs"), proxied=False) as rig:
        endpoint = Endpoint.parse(f"http://127.0.0.1:{port}")
        load = Load(endpoint, make_jobs("headway-mini", 8, 5), Checker(), patience=PATIENCE)
        await load.learn()
        yield rig, load
        load.close()


@pytest.mark.parametrize("name", LIVE)
async def test_a_strike_loses_doubles_and_changes_nothing(
    running: tuple[Rig, Load], name: str
) -> None:
    rig, load = running
    service_id = "prefill-1" if name in AT_THE_SOURCE else PROCESS[name.partition(".")[0]]
    # a gateway's death would end its clients' connections, which is no promise
    action = "sleep:1*2" if service_id == "gateway" else "exit"
    process = next(each for each in rig.processes if each.spec.service_id == service_id)
    await rig.restart_with(process, f"{name}={action}")
    assert await rig.serving(PATIENCE) == []
    await load.ask_all()
    assert load.checker.violations == []
    assert load.figures.cut == []
    log = next(each for each in rig.processes if each.spec.service_id == service_id).log_path
    assert "failpoint" in log.read_text(encoding="utf-8", errors="replace")
    assert await rig.serving(PATIENCE) == []


def test_a_predictor_that_dies_in_the_middle_of_a_version_leaves_the_older_one(
    tmp_path: Path,
) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from services.predictor.network import LengthNetwork, NetworkShape\n"
        "from services.predictor.versions import newest_version, save_version\n"
        "from services.runtime.failpoints import arm_from_environment\n"
        "arm_from_environment()\n"
        "folder = Path(sys.argv[1])\n"
        "print(repr(newest_version(folder)))\n"
        "save_version(folder, LengthNetwork(NetworkShape(4, (8,))), {})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    lives = [
        subprocess.run(
            command, env={**child_environment(), VARIABLE: points}, capture_output=True, text=True
        )
        for points in ("", "predictor.version.saved=exit", "")
    ]
    assert [life.returncode for life in lives] == [0, 137, 0], lives
    assert [life.stdout.splitlines()[0] for life in lives] == ["''", "'v0001'", "'v0001'"]
