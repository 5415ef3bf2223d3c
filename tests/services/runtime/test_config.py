"""Configuration: flags before environment before defaults; what is wrong is said by name."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.gateway.config import GatewayConfig
from services.runtime.config import (
    ServiceConfig,
    host_and_port,
    is_loopback,
    load_config,
    read_config,
    without_password,
)
from services.runtime.log_lines import LogLines
from services.runtime.machine import Machine
from services.runtime.service import Runtime, Service, start
from services.runtime.store import Store
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig


def test_the_default_is_loopback_alone() -> None:
    assert is_loopback(ServiceConfig().listen)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CLUSTER", "from-environment")
    monkeypatch.setenv("HEADWAY_LOG_LEVEL", "debug")
    found = load_config(ServiceConfig, ["--cluster", "from-flag"])
    assert (found.cluster, found.log_level) == ("from-flag", "debug")


def test_a_service_without_an_id_gets_one_with_its_name() -> None:
    first, second = WorkerConfig(), WorkerConfig()
    assert first.service_id.startswith("worker-")
    assert first.service_id != second.service_id


@pytest.mark.parametrize("role", ["", "prefill-", "convertible-"])
def test_a_chunk_that_its_worker_could_not_tell_the_scheduler_is_refused(role: str) -> None:
    with pytest.raises(HeadwayError, match=f"{role}chunk-tokens is '4294967296'"):
        read_config(WorkerConfig, [f"--{role}chunk-tokens", "4294967296"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--listen", "nowhere"], "listen is 'nowhere'; it must be host:port"),
        (["--metrics-listen", ":9"], "metrics_listen is ':9'"),
        (["--cluster", "a b"], "cluster is 'a b'"),
        (["--service-id", "a|b"], "service-id is 'a|b'"),
        (["--drain-timeout", "nan"], "drain-timeout is 'nan'"),
        (["--log-level", "shout"], "'debug', 'info', 'warning' or 'error'"),
        (["--tls-cert", "cert.pem"], "give tls_cert, tls_key and tls_ca together"),
        (["--no-such-flag", "1"], "unrecognized arguments: --no-such-flag"),
        (["--advertise", "http://[x"], "advertise is 'http://[x'"),
        (["--advertise", "a b"], "must be host or host:port"),
    ],
)
def test_what_is_wrong_is_said_by_name_and_exits_with_2(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load_config(ServiceConfig, flags)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("address", ["", "worker-1", "worker-1:7000", "[::1]:7000", "10.0.0.1"])
def test_an_address_may_be_advertised_with_and_without_a_port(address: str) -> None:
    assert load_config(ServiceConfig, ["--advertise", address]).advertise == address


@pytest.mark.parametrize("flag", ["--log-level", "--drain-timeout", "--store", "--model"])
def test_a_wrong_value_is_repeated_in_part_alone(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load_config(WorkerConfig, [flag, "x" * 5000])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(said) < 600
    assert len(said.splitlines()) == 1


class NoStore(Machine):
    """A machine whose store must not be asked."""

    async def connect(self, config: ServiceConfig) -> Store:
        raise AssertionError("the store is asked before the files are read")


@pytest.mark.parametrize("flag", ["api-key-file", "classes", "profile", "cluster-secret-file"])
async def test_files_are_refused_by_name_before_the_store_is_asked(
    flag: str, tmp_path: Path
) -> None:
    flags = ["--model", "headway-mini", "--cluster-secret-file", str(tmp_path / "secret")]
    config = load_config(GatewayConfig, [*flags, f"--{flag}", str(tmp_path)])
    with pytest.raises(HeadwayError, match=str(tmp_path)):
        await start(config, unbuilt, AsyncExitStack(), LogLines(None), NoStore())


async def unbuilt(runtime: Runtime[GatewayConfig]) -> Service:
    """Build nothing."""
    raise AssertionError("it does not come that far")


def test_parameters_of_another_form_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_config(SchedulerConfig, ["--set", "dispatch"])
    assert "--set is 'dispatch'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("0.0.0.0:1", False)],
)
def test_loopback_is_recognised(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_addresses_are_taken_apart_and_nonsense_is_refused() -> None:
    assert host_and_port("listen", "[::1]:70") == ("[::1]", 70)
    for address in ("", "host", "host:", ":1", "host:x", "host:-1", "host:65536", "host:²"):
        with pytest.raises(HeadwayError, match="listen is"):
            host_and_port("listen", address)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://u:secret@h:1/0", "redis://u:***@h:1/0"),
        ("rediss://:secret@h", "rediss://:***@h"),
        ("redis://[broken", "an unreadable URL"),
    ],
)
def test_passwords_of_urls_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
