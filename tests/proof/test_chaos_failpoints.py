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
from services.local.supervised import SupervisedProcess
from services.predictor.network import LengthNetwork, NetworkShape
from services.predictor.versions import newest_version, save_version
from services.runtime.failpoints import FAILPOINTS, VARIABLE
from services.runtime.rooms import child_environment
from tests.fakes.local_cluster import MODEL, until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 400.0
"""Seconds; a worker's start takes a minute and more on a busy machine."""
STRIKES = (
    # a gateway's death would end its clients' connections, which is no promise
    (
        "gateway",
        "scheduler_connected",
        "gateway.request.handed=sleep:1*2;gateway.tokens.taken=sleep:1*2",
    ),
    ("scheduler", "gateway_connected", "scheduler.lease.taken=exit"),
    ("scheduler", "gateway_connected", "scheduler.order.sent=exit"),
    ("scheduler", "gateway_connected", "scheduler.journal.saved=exit"),
    # a decoder may never get an order; whoever prefills gets every dispatch
    ("prefill-1", "scheduler_connected", "worker.dispatch.taken=exit"),
    ("prefill-1", "scheduler_connected", "worker.kv.acked=exit"),
    ("decode-1", "scheduler_connected", "worker.tokens.queued=exit"),
    ("decode-1", "scheduler_connected", "worker.kv.arrived=exit"),
    ("decode-1", "scheduler_connected", "member.joined=exit"),
    ("autoscaler", "serving", "autoscaler.targets.decided=exit"),
)
"""The process that is restarted, what its log says once requests reach it, and its failpoints."""


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


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("service_id", "reached", "points"), STRIKES, ids=[points for *_, points in STRIKES]
)
async def test_a_strike_loses_doubles_and_changes_nothing(
    running: tuple[Rig, Load], service_id: str, reached: str, points: str
) -> None:
    rig, load = running
    process = next(each for each in rig.processes if each.spec.service_id == service_id)
    await rig.restart_with(process, points)
    process = next(each for each in rig.processes if each.spec.service_id == service_id)
    assert await rig.serving(PATIENCE) == []
    # else the load could be over before the others know of the process
    await logged(process, reached)
    await load.ask_all()
    assert load.checker.violations == []
    assert load.figures.cut == []
    for point in points.split(";"):
        await logged(process, f"name={point.partition('=')[0]}")
    assert await rig.serving(PATIENCE) == []


def test_every_failpoint_strikes_here() -> None:
    struck = {point.partition("=")[0] for *_, points in STRIKES for point in points.split(";")}
    assert {*struck, "predictor.version.saved"} == set(FAILPOINTS)


async def logged(process: SupervisedProcess, words: str) -> None:
    """Wait until the process's log has these words."""

    async def has_them() -> bool:
        return words in process.log_path.read_text(encoding="utf-8", errors="replace")

    await until(has_them, PATIENCE)


def test_a_predictor_that_dies_in_the_middle_of_a_version_leaves_the_older_one(
    tmp_path: Path,
) -> None:
    network = LengthNetwork(NetworkShape(4, (8,)))
    assert newest_version(tmp_path) == ""
    save_version(tmp_path, network, {})
    assert newest_version(tmp_path) == "v0001"
    script = (
        "import sys; from pathlib import Path\n"
        "from services.predictor.network import LengthNetwork, NetworkShape\n"
        "from services.predictor.versions import save_version\n"
        "from services.runtime.failpoints import arm_from_environment\n"
        "arm_from_environment()\n"
        "save_version(Path(sys.argv[1]), LengthNetwork(NetworkShape(4, (8,))), {})\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**child_environment(), VARIABLE: "predictor.version.saved=exit"},
        capture_output=True,
        text=True,
    )
    assert died.returncode == 137, died
    assert newest_version(tmp_path) == "v0001"
    save_version(tmp_path, network, {})
    assert newest_version(tmp_path) > "v0001"
