"""A service's life as a process: start, serve, drain, stop, and every way in which it may end."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import signal
import sys
import threading
import urllib.request
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from services.gateway.auth import key_line
from services.gateway.config import GatewayConfig
from services.local.store import free_port
from services.runtime import scrape_pace, telemetry
from services.runtime.probes import Probes
from services.runtime.store import Member, Store

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 60.0


class Running:
    """A tiny service and the lines it has logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    async def until(self, event: str) -> dict[str, Any]:
        """Read on until this event is logged."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(f"{event} is not in {self.lines}")

    async def ended(self) -> int:
        """Its exit status, all lines read."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(json.loads(line))
        return await self.process.wait()

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


Start = Callable[..., Any]


@pytest.fixture
def tiny(store_url: str, cluster: str) -> Start:
    @asynccontextmanager
    async def start(*flags: str, stdout: Any = PIPE, stderr: Any = None) -> AsyncIterator[Running]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fakes.tiny_service"),
            *("--store", store_url, "--cluster", cluster, "--service-id", "tiny-1"),
            *("--log-format", "json", *flags),
            cwd=ROOT,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                yield Running(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return start


@pytest.fixture
def full_disk() -> Iterator[IO[bytes]]:
    with open("/dev/full", "wb") as file:
        yield file


async def members(store_url: str, cluster: str) -> list[Member]:
    store = await Store.connect(store_url, cluster)
    found = await store.members("tiny")
    await store.close()
    return found


async def test_it_serves_is_a_member_drains_leaves_and_exits_with_0(
    tiny: Start, store_url: str, cluster: str
) -> None:
    async with tiny() as running:
        address = (await running.until("serving"))["address"]
        while not (found := await members(store_url, cluster)):
            await asyncio.sleep(0.02)
        pid = str(running.process.pid)
        assert found == [
            Member("tiny", "tiny-1", address, role="tiny", detail={"said": "so", "pid": pid})
        ]
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert running.events == ["serving", "draining", "let_go", "stopped"]
        assert await members(store_url, cluster) == []


async def test_a_refusal_at_start_is_logged_and_exits_with_1(tiny: Start) -> None:
    async with tiny("--trouble", "refuse") as running:
        assert "--model" in (await running.until("cannot_start"))["error"]
        assert await running.ended() == 1


async def test_a_crash_at_start_is_logged_with_its_traceback_and_exits_with_1(tiny: Start) -> None:
    async with tiny("--trouble", "crash") as running:
        crash = await running.until("crashed")
        assert "ZeroDivisionError" in crash["exception"]
        assert await running.ended() == 1


async def test_a_wrong_flag_exits_with_2(tiny: Start) -> None:
    async with tiny("--trouble", "nonsense") as running:
        assert await running.ended() == 2


async def test_a_folder_for_records_that_cannot_be_made_exits_with_2(tiny: Start) -> None:
    async with tiny("--record-events", "/dev/null/records") as running:
        refused = await running.until("cannot_start")
        assert "record_events is '/dev/null/records'" in refused["error"]
        assert await running.ended() == 2


async def test_a_stop_while_it_is_starting_does_not_wait_for_the_start(tiny: Start) -> None:
    async with tiny("--trouble", "slow-start") as running:
        await running.until("loading")
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert "serving" not in running.events


async def test_a_drain_that_takes_too_long_is_cut_short(tiny: Start) -> None:
    async with tiny("--trouble", "slow-drain", "--drain-timeout", "0.05") as running:
        await running.until("serving")
        running.process.send_signal(signal.SIGINT)
        assert await running.ended() == 0
        assert running.events[1:] == ["draining", "drain_timed_out", "let_go", "stopped"]


async def test_a_second_signal_ends_it_at_once(tiny: Start) -> None:
    async with tiny("--trouble", "slow-drain") as running:
        await running.until("serving")
        running.process.send_signal(signal.SIGTERM)
        await running.until("draining")
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == 128 + signal.SIGTERM


async def test_an_error_that_nobody_waits_for_is_logged_and_the_service_goes_on(
    tiny: Start,
) -> None:
    async with tiny("--trouble", "stray") as running:
        assert "IndexError" in (await running.until("unexpected_error"))["exception"]
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == 0


async def test_the_end_of_a_task_that_it_lives_by_ends_the_process(
    tiny: Start, store_url: str, cluster: str
) -> None:
    async with tiny("--trouble", "task") as running:
        ended = await running.until("essential_task_ended")
        assert ended["task"] == "the task it lives by"
        assert "ZeroDivisionError" in ended["exception"]
        assert await running.ended() == 1
        assert "let_go" in running.events
        assert await members(store_url, cluster) == []  # it has left at once


async def test_a_service_that_cannot_log_serves_and_counts_the_lines(
    tiny: Start, store_url: str, cluster: str, full_disk: IO[bytes]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with tiny("--metrics-listen", address, stdout=full_disk) as running:
        while not await members(store_url, cluster):
            await asyncio.sleep(0.02)
        text = await asyncio.to_thread(_get, f"http://{address}/metrics")
        assert "\nheadway_log_lines_dropped" in text
        assert "\nheadway_log_lines_dropped 0.0\n" not in text
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == 0


async def test_a_service_whose_event_loop_hangs_ends_with_its_stacks(tiny: Start) -> None:
    async with tiny("--trouble", "hang", "--hang-timeout", "1", stderr=PIPE) as running:
        assert await running.ended() == 1
        stacks = (await running.process.stderr.read()).decode()
        assert "Timeout" in stacks
        assert "run_service" in stacks


async def test_metrics_say_whether_it_serves_with_help_and_units(tiny: Start) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with tiny("--metrics-listen", address) as running:
        await running.until("serving")
        text = await asyncio.to_thread(_get, f"http://{address}/metrics")
        assert "\nheadway_service_serving 1.0\n" in text
        assert "# HELP headway_event_loop_lag_seconds Seconds by which" in text
        assert 'headway_service_info{service="tiny",service_id="tiny-1"' in text


async def test_the_metrics_port_names_tenants_to_operators_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = key_line("some", "hw-some"), key_line("boss", "hw-boss", operator=True)
    file.write_text("\n".join(keys))
    file.chmod(0o600)
    registry = CollectorRegistry()
    Counter("served", "By tenant.", ["tenant"], registry=registry).labels("secret").inc()
    Counter("all", "In all.", registry=registry).inc()

    def sees(**options: Any) -> Callable[[str], bool]:
        config = GatewayConfig(service_id="g", model="m", **options)
        return config.sees_tenants()

    closed = sees(api_key_file=file)
    with telemetry.serve_metrics("127.0.0.1:0", registry, Probes(), closed) as address:
        for key, is_told in (("", False), ("hw-some", False), ("hw-boss", True)):
            text = await asyncio.to_thread(_get, f"http://{address}/metrics", f"Bearer {key}")
            assert "all_total 1.0" in text
            assert ("secret" in text) is is_told
    assert sees()("")
    assert sees(api_key_file=file, monitoring_needs_key=False)("")


async def test_a_silent_connection_to_the_metrics_port_is_closed_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telemetry, "_SILENCE", 0.1)
    with telemetry.serve_metrics("127.0.0.1:0", CollectorRegistry(), Probes()) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("is_told", [False, True])
async def test_odd_questions_to_the_metrics_port_are_answered_without_a_traceback(
    is_told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    registry = CollectorRegistry()
    for name in ("one", "two"):
        Counter(name, "Counts.", ["tenant"], registry=registry).labels("t").inc()
    Counter("all", "In all.", registry=registry).inc()
    with telemetry.serve_metrics("127.0.0.1:0", registry, Probes(), lambda _: is_told) as address:
        host, _, port = address.rpartition(":")

        async def ask(target: str, accept: str = "*/*") -> str:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {target} HTTP/1.0\r\nAccept: {accept}\r\n\r\n".encode("latin-1"))
            answer = await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
            return answer.decode()

        odd = "application/openmetrics-text; version=odd"
        assert "all_total 1.0" in await ask("/metrics", odd)
        some = await ask("/metrics?name[]=one_total&name[]=all_total&name[]=%ff")
        assert ("one_total{" in some, "two_total" in some) == (is_told, False)
        assert "all_total 1.0" in some
    assert capfd.readouterr().err == ""


async def test_the_metrics_port_has_a_bound_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrape_pace, "_MOST_CONNECTIONS", 1)
    with telemetry.serve_metrics("127.0.0.1:0", CollectorRegistry(), Probes()) as address:
        host, _, port = address.rpartition(":")
        first, one_more = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        assert await asyncio.wait_for(one_more[0].read(), PATIENCE) == b""
        first[1].close()
        one_more[1].close()
        assert await asyncio.wait_for(first[0].read(), PATIENCE) == b""
        assert await asyncio.to_thread(_get_once_there, f"http://{address}/live") == "ok\n"


async def test_a_connection_to_the_metrics_port_without_a_thread_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(scrape_pace, "_MOST_CONNECTIONS", 1)
    with telemetry.serve_metrics("127.0.0.1:0", CollectorRegistry(), Probes()) as address:
        host, _, port = address.rpartition(":")
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()
        assert await asyncio.to_thread(_get, f"http://{address}/live", "") == "ok\n"


async def test_who_scrapes_on_and_on_reads_a_text_that_is_rendered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks, renders = itertools.count(), itertools.count()
    monkeypatch.setattr(scrape_pace.ScrapePace, "is_flood", lambda *_: next(asks) > 1)
    monkeypatch.setattr(telemetry, "KEPT", 1000.0)
    registry = CollectorRegistry()
    Gauge("renders", "So far.", registry=registry).set_function(lambda: next(renders))
    with telemetry.serve_metrics("127.0.0.1:0", registry, Probes()) as address:
        told = [
            (await asyncio.to_thread(_get, f"http://{address}/metrics{odd}", "")).splitlines()[-1]
            for odd in ("", "", "", "?name[]=other", "?name[]=renders", "")
        ]
    assert told == [f"renders {float(number)}" for number in (0, 1, 2, 2, 2, 2)]


def _get_once_there(url: str) -> str:
    """Ask until the place of the connection before is free."""
    while True:
        with suppress(OSError):
            return _get(url, "")


async def test_a_service_may_open_as_many_files_as_the_system_allows(tiny: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        async with tiny() as service:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await service.until("serving")
            found, _ = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
            assert found == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_taken_metrics_port_is_refused_with_the_way_out(tiny: Start) -> None:
    async with tiny() as first:
        address = (await first.until("serving"))["address"]
        async with tiny("--metrics-listen", address) as second:
            assert "--metrics-listen" in (await second.until("cannot_start"))["error"]
            assert await second.ended() == 1


def _get(url: str, authorization: str = "") -> str:
    asked = urllib.request.Request(url, headers={"authorization": authorization})
    with urllib.request.urlopen(asked) as response:
        text: str = response.read().decode()
        return text
