"""The supervisor with real processes: restarts, refusals, nothing left behind."""

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
from services.local.cluster import store_spec
from services.local.store import free_port, private_store
from services.local.supervisor import ProcessSpec, Supervisor
from services.runtime import health
from services.runtime.config import ServiceConfig
from services.runtime.essential import Ending
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store
from tests.fakes.certificates import make_certificates

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
async def supervised(
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


async def test_a_killed_process_is_restarted_and_stopping_leaves_none(
    store_url: str, cluster: str, tmp_path: Path, imports: Imports
) -> None:
    specs = [
        ProcessSpec(service, name, imports=imports)
        for service, name in (("predictor", "one"), ("autoscaler", "two"))
    ]
    async with supervised(specs, store_url, cluster, tmp_path) as (supervisor, said):
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
    store_url: str, cluster: str, tmp_path: Path, imports: Imports
) -> None:
    specs = [ProcessSpec("autoscaler", "one", imports=imports)]
    async with supervised(specs, store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
        process = supervisor.processes[0]
        process.next_life = {"HEADWAY_LOG_LEVEL": "nonsense"}
        process.restart()
        while process.num_deaths < 2:
            await asyncio.sleep(0.02)
        await supervisor.serving()
    assert sum("died (exit 2), restarting" in line for line in said) == 1


async def test_a_service_that_is_removed_ends_and_its_supervisor_lives_on(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    ending = Ending()
    asyncio.get_running_loop().set_exception_handler(ending.take)
    specs = [ProcessSpec("autoscaler", "one"), ProcessSpec("autoscaler", "two")]
    async with supervised(specs, store_url, cluster, tmp_path) as (supervisor, _):
        await supervisor.serving()
        await supervisor.remove(supervisor.processes[0])
        assert [process.spec.service_id for process in supervisor.processes] == ["two"]
    assert not ending.begins.is_set(), ending.failure


async def test_services_with_certificates_are_found_by_who_has_one(
    store_url: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_certificates(tmp_path / "certificates", PREDICTOR, cluster=cluster)
    for name, path in options.items():
        monkeypatch.setenv(f"HEADWAY_{name.upper()}", str(path))
    specs = [ProcessSpec("predictor", "predictor")]
    async with supervised(specs, store_url, cluster, tmp_path) as (supervisor, _):
        await supervisor.serving()
        address = supervisor.processes[0].address
        ours = ServiceConfig(cluster=cluster)
        assert await health.is_serving(address, ours, PREDICTOR, within=2.0)
        assert not await health.is_serving(address, ours, ServiceRole.WORKER, within=2.0)
        monkeypatch.undo()
        strangers = ServiceConfig(cluster=cluster)
        assert not await health.is_serving(address, strangers, PREDICTOR, within=2.0)


async def test_a_service_that_cannot_start_is_given_up_and_its_log_is_shown(
    store_url: str, cluster: str, tmp_path: Path, imports: Imports
) -> None:
    specs = [
        ProcessSpec("nonsense", "bad", imports=imports),
        ProcessSpec("predictor", "good", imports=imports),
    ]
    async with supervised(specs, store_url, cluster, tmp_path) as (supervisor, said):
        with pytest.raises(HeadwayError, match=r"bad does not start: see .*bad\.log"):
            await supervisor.serving()
    assert sum("died (exit 1)" in line for line in said) == 3
    assert any("nonsense" in line and line.startswith("    ") for line in said)


async def test_a_service_that_is_called_wrongly_is_given_up_at_once(
    store_url: str, cluster: str, tmp_path: Path, imports: Imports
) -> None:
    specs = [ProcessSpec("scheduler", "bad", ("--policy", "placement=nonsense"), imports=imports)]
    async with supervised(specs, store_url, cluster, tmp_path) as (supervisor, said):
        with pytest.raises(HeadwayError, match="does not start"):
            await supervisor.serving()
    assert any("nonsense" in line and line.startswith("    ") for line in said)
    assert sum("died (exit 2), given up" in line for line in said) == 1


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
    async with supervised(specs, url, cluster, folder) as (supervisor, said):
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


async def test_a_process_that_ignores_sigterm_is_killed(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    port = free_port()
    code = (
        "import signal, socket; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"server = socket.create_server(('127.0.0.1', {port}))\n"
        "while True: server.accept()"
    )
    spec = ProcessSpec(
        "stubborn", "stubborn", command=(sys.executable, "-c", code), address=f"127.0.0.1:{port}"
    )
    async with supervised([spec], store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
        pid = supervisor.processes[0].pid
        assert pid is not None
        await supervisor.processes[0].stop(patience=0.05)
    assert not is_alive(pid)
    assert any("killed" in line for line in said)


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from services.runtime.config import ServiceConfig
from services.runtime.essential import Ending
from services.runtime.store import Store
from services.local.supervisor import ProcessSpec, Supervisor

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
    async with supervised(specs, store_url, cluster, tmp_path) as (supervisor, said):
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
    async with supervised([spec], store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
    assert any("executed, not copied: a module has started a thread" in line for line in said)


@pytest.mark.skipif(sys.platform != "linux", reason="services are copied on Linux alone")
async def test_a_service_is_executed_where_its_template_ends_and_the_next_has_another(
    store_url: str, cluster: str, tmp_path: Path
) -> None:
    one = ProcessSpec("autoscaler", "one", imports=("tests.fakes.exit_at_import",))
    async with supervised([one], store_url, cluster, tmp_path) as (supervisor, said):
        await supervisor.serving()
        supervisor.add(ProcessSpec("predictor", "two", imports=()))
        await supervisor.serving()
    assert sum("executed, not copied" in line for line in said) == 1
