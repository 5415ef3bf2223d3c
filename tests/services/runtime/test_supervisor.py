"""The supervisor: its decisions on virtual time, and real processes, of which none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from proof.vopr.cluster import ShellCluster
from proof.vopr.hosts import NO_ROOM
from services.local.cluster import store_spec
from services.local.process_spec import ProcessSpec
from services.local.store import private_store
from services.local.supervisor import Supervisor
from services.runtime import health
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store
from tests.fakes.certificates import make_certificates
from tests.fakes.supervised import serves, supervised, until

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 90.0
PREDICTOR = ServiceRole.PREDICTOR


Imports = tuple[str, ...] | None


@pytest.fixture(params=[None, ()], ids=["executed", "copied"])
def imports(request: pytest.FixtureRequest) -> Imports:
    """How a service begins."""
    value: Imports = request.param
    return value


@asynccontextmanager
async def running(
    specs: Sequence[ProcessSpec], url: str, cluster: str, folder: Path
) -> AsyncIterator[tuple[Supervisor, list[str]]]:
    """A started supervisor, and what it says."""
    said: list[str] = []
    config = ServiceConfig(service_id="supervisor", store=url, cluster=cluster, drain_timeout=1.0)
    supervisor = Supervisor(specs, config, folder, said.append)
    try:
        async with asyncio.timeout(PATIENCE):
            await supervisor.start()
            yield supervisor, said
    finally:
        await supervisor.stop()


def is_alive(pid: int) -> bool:
    """Return whether it runs: what has ended and not been waited for does not."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in status_of(pid)
    except (ProcessLookupError, FileNotFoundError):
        return False


def status_of(pid: int | None) -> str:
    path = Path(f"/proc/{pid}/status")
    return path.read_text() if path.parent.parent.is_dir() else ""


# --- decisions, on virtual time ---------------------------------------------------------


async def launches(cluster: ShellCluster, name: str, last: object) -> float:
    """Return the seconds until a host has another process than the last one."""
    ended_at = cluster.world.loop.time()
    await until(lambda: cluster.processes.get(name) not in (None, last))
    return round(cluster.world.loop.time() - ended_at, 1)


@supervised()
async def test_pauses_between_lives_grow_and_a_long_life_forgives(cluster: ShellCluster) -> None:
    await until(lambda: serves(cluster))
    pauses = [await launches(cluster, "p0", cluster.end("p0")) for _ in range(7)]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    for life, pause in ((29.0, 5.0), (31.0, 0.2)):
        await asyncio.sleep(life)
        assert await launches(cluster, "p0", cluster.end("p0")) == pause


@pytest.mark.parametrize("failures", [[1, NO_ROOM, 1, 1], [2, 1]])
@supervised()
async def test_who_never_serves_is_given_up_and_who_has_served_is_not(
    cluster: ShellCluster, failures: list[int]
) -> None:
    """After three deaths, or one by a wrong configuration."""
    cluster.hosts.by_name["p0"].failures.extend(failures)
    process = cluster.supervised("p0")
    assert process is not None
    with pytest.raises(HeadwayError, match=r"p0 does not start: see .*p0\.log"):
        await process.serving()
    await asyncio.sleep(60.0)
    assert process.is_given_up
    assert len(cluster.hosts.by_name["p0"].failures) == 1, "it is started no more"
    await until(lambda: cluster.processes["a0"] and "a0" not in cluster.awaited())
    cluster.hosts.by_name["a0"].failures.extend(failures)
    cluster.end("a0")
    await until(lambda: "a0" in cluster.awaited())
    await until(lambda: "a0" not in cluster.awaited())


@supervised()
async def test_a_service_that_is_removed_drains_and_its_supervisor_lives_on(
    cluster: ShellCluster,
) -> None:
    await until(lambda: serves(cluster))
    process, life = cluster.supervised("w0"), cluster.processes["w0"]
    assert process is not None
    await cluster.order(cluster.supervisor.remove(process))
    assert (life.returncode, "w0" in cluster.processes) == (0, False)
    assert cluster.supervised("w0") is None
    await asyncio.sleep(10.0)
    assert "w0" not in cluster.processes


@supervised()
async def test_what_drains_is_killed_only_once_it_has_had_its_time(cluster: ShellCluster) -> None:
    await until(lambda: serves(cluster))
    process, life = cluster.supervised("w0"), cluster.processes["w0"]
    assert process is not None
    cluster.pause("w0")
    began_at = cluster.world.loop.time()
    await cluster.order(process.stop(patience=7.0))
    assert (life.returncode, cluster.world.loop.time() - began_at) == (-9, 7.0)


@supervised()
async def test_gateways_go_first_then_schedulers_then_the_rest(cluster: ShellCluster) -> None:
    await until(lambda: serves(cluster))
    log: list[str] = []
    cluster.world.log = log
    lives = list(cluster.processes.values())
    await cluster.order(cluster.supervisor.stop())
    ended = [line.rpartition(" ")[2] for line in log if " end " in line]
    assert ended[:2] == ["g0", "s0"]
    assert sorted(ended[2:]) == ["a0", "p0", "w0"]
    assert {life.returncode for life in lives} == {0}


# --- real processes ---------------------------------------------------------------------


async def test_a_killed_process_is_restarted_and_stopping_leaves_none(
    store_url: str, cluster: str, tmp_path: Path, imports: Imports
) -> None:
    specs = [
        ProcessSpec(service, name, imports=imports)
        for service, name in (("predictor", "one"), ("autoscaler", "two"))
    ]
    async with running(specs, store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
        victim = supervisor.processes[0]
        first_pid = victim.pid
        assert first_pid is not None
        os.kill(first_pid, signal.SIGKILL)
        while victim.pid in (None, first_pid):
            await asyncio.sleep(0.02)
        await supervisor.serving()
        pids = [process.pid for process in supervisor.processes]
        assert all(process.address for process in supervisor.processes)
    assert all(pid is not None and not is_alive(pid) for pid in pids)
    assert any("one" in line and "signal 9" in line and "restarting" in line for line in said)
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("one", "two")]
    assert all("stopped" in log for log in logs), "they were drained, not killed"


async def test_one_life_alone_has_another_environment_and_who_has_served_is_never_given_up(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    specs = [ProcessSpec("autoscaler", "one", imports=())]
    async with running(specs, store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
        process = supervisor.processes[0]
        process.next_life = {"HEADWAY_LOG_LEVEL": "nonsense"}
        process.restart()
        while process.num_deaths < 2:
            await asyncio.sleep(0.02)
        await supervisor.serving()
    assert sum("died (exit 2), restarting" in line for line in said) == 1


async def test_services_with_certificates_are_found_by_who_has_one(
    store_url: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_certificates(tmp_path / "certificates", PREDICTOR, cluster=cluster)
    for name, path in options.items():
        monkeypatch.setenv(f"HEADWAY_{name.upper()}", str(path))
    specs = [ProcessSpec("predictor", "predictor")]
    async with running(specs, store_url, cluster, tmp_path) as (supervisor, _):
        await supervisor.serving()
        address = supervisor.processes[0].address
        ours = ServiceConfig(cluster=cluster)
        assert await health.is_serving(address, ours, PREDICTOR, within=2.0)
        assert not await health.is_serving(address, ours, ServiceRole.WORKER, within=2.0)
        monkeypatch.undo()
        strangers = ServiceConfig(cluster=cluster)
        assert not await health.is_serving(address, strangers, PREDICTOR, within=2.0)


async def test_a_service_that_cannot_start_is_given_up_and_its_log_is_shown(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    specs = [ProcessSpec("nonsense", "bad", imports=())]
    async with running(specs, store_url, cluster, tmp_path) as (supervisor, said):
        with pytest.raises(HeadwayError, match=r"bad does not start: see .*bad\.log"):
            await supervisor.serving()
    assert sum("died (exit 1)" in line for line in said) == 3
    assert any("nonsense" in line and line.startswith("    ") for line in said)


async def test_a_store_that_dies_is_restarted_and_services_come_back_to_it(
    cluster: str, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        private = private_store(Path(folder))
        specs = [store_spec(private), ProcessSpec("predictor", "predictor")]
        said = await _outlives_its_store(specs, private.url, cluster, tmp_path)
    assert not any(line.startswith("predictor") and "died" in line for line in said)


async def _outlives_its_store(
    specs: list[ProcessSpec], url: str, cluster: str, folder: Path
) -> list[str]:
    """Kill the store and wait until the predictor is a member again; what was said."""
    async with running(specs, url, cluster, folder) as (supervisor, said):
        await supervisor.serving()
        first_pid = supervisor.processes[0].pid
        assert first_pid is not None
        os.kill(first_pid, signal.SIGKILL)
        while supervisor.processes[0].pid in (None, first_pid):
            await asyncio.sleep(0.02)
        await supervisor.serving()
        store = await Store.connect(url, cluster)
        while not await store.members("predictor"):
            await asyncio.sleep(0.02)
        await store.close()
    return said


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from services.runtime.config import ServiceConfig
from services.runtime.essential import Ending
from services.runtime.store import Store
from services.local.supervisor import Supervisor
from services.local.process_spec import ProcessSpec

async def main(url, cluster, folder, imports):
    config = ServiceConfig(service_id="supervisor", store=url, cluster=cluster)
    specs = [ProcessSpec("predictor", "p", imports=eval(imports))]
    supervisor = Supervisor(specs, config, Path(folder), lambda line: None)
    await supervisor.start()
    await supervisor.serving()
    print(supervisor.processes[0].pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_nothing_outlives_a_supervisor_that_is_killed(
    store_url: str, cluster: str, tmp_path: Path, imports: Imports
) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SUPERVISOR, store_url, cluster, str(tmp_path), repr(imports)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    async with asyncio.timeout(PATIENCE):
        child = int(await parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
        await parent.wait()
        while is_alive(child):
            await asyncio.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="services are copied on Linux alone")
async def test_a_copy_is_a_child_of_the_supervisor_and_bears_its_own_name(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    specs = [ProcessSpec("autoscaler", "one", imports=("json", "nothing.of.this.name"))]
    async with running(specs, store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
        status = status_of(supervisor.processes[0].pid)
    assert f"PPid:\t{os.getpid()}\n" in status
    assert status.startswith("Name:\tone\n")
    assert not any("executed" in line for line in said)
    assert "nothing.of.this.name" not in (tmp_path / "one.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="services are copied on Linux alone")
async def test_nothing_is_copied_from_a_process_with_threads(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    spec = ProcessSpec("autoscaler", "one", imports=("tests.fakes.thread_at_import",))
    async with running([spec], store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
    assert any("executed, not copied: a module has started a thread" in line for line in said)


@pytest.mark.skipif(sys.platform != "linux", reason="services are copied on Linux alone")
async def test_a_service_is_executed_where_its_template_ends_and_the_next_has_another(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    one = ProcessSpec("autoscaler", "one", imports=("tests.fakes.exit_at_import",))
    async with running([one], store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
        supervisor.add(ProcessSpec("predictor", "two", imports=()))
        await supervisor.serving()
    assert sum("executed, not copied" in line for line in said) == 1
