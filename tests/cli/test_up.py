"""``headway up``: what it refuses in one sentence, before anything starts; its services' flags."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli import up
from headway.errors import HeadwayError
from services.gateway.config import GatewayConfig
from services.local.cluster import LocalCluster, hold_folder
from services.local.options import process_specs
from services.local.service_flags import CONFIGS, parse_service_flags
from services.local.store import free_port
from services.local.taken_ids import refuse_taken_ids
from services.runtime.config import ServiceConfig, load_config, read_config
from services.runtime.rooms import ROOMS
from services.runtime.store import Member, Store
from services.worker.config import WorkerConfig
from tests.fakes.said_by_up import said_of

KEYS = "ops:" + 64 * "0"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model", "no/such/model/here"), "no/such/model/here"),
        (("--api-key-file", "nowhere"), "--api-key-file is 'nowhere'"),
        (("--log-dir", "file/logs"), "--log-dir is 'file/logs'"),
        (("--profile", "nowhere.toml"), "nowhere.toml"),
        (("--preset", "fastest"), "preset is 'fastest'"),
        (("--policy", "batching=fastest"), "batching is 'fastest'"),
        (("--predictor", "nowhere"), "--predictor is 'nowhere'"),
        (("--prefill", "0"), "cannot answer anything"),
        (("--prefill", "one"), "invalid int value: 'one'"),
        (("--standby", "1"), "it is for --autoscale"),
        (("--lora", "sql"), "--lora is 'sql'; it must be NAME=FOLDER"),
        (("--lora", "sql=x"), "adapter 'sql': 'x' is no folder of a LoRA adapter"),
        (("--lora", "headway-mini=x"), "--lora is 'headway-mini'; it must be a name that no model"),
        (("--dtype", "float8"), "float8"),
        (("--modle", "x"), "unknown argument --modle: did you mean --model"),
        (("--host-kv-gib", "2"), "did you mean --worker.host-kv-gib?"),
        (("--worker.host-kv-gb", "2"), "did you mean --worker.host-kv-gib"),
        (("--worker.host-kv-gib", "-2"), "host-kv-gib is '-2'"),
        (("--worker.role", "decode"), "unknown argument --worker.role"),
        (("7",), "unknown argument 7"),
        (("--cluster", "a b"), "cluster is 'a b'"),
        (("--store", "foo"), "store is 'foo'"),
        (("--device", "gpu"), "device is 'gpu'"),
        (("--host", "no.such.host.invalid"), "--host is 'no.such.host.invalid'"),
        (("--policy", "scaling=tokenscale"), "is for --autoscale"),
        (("--listen", "no.such.host.invalid"), "--listen is 'no.such.host.invalid'"),
        (("--worker.listen", "127.0.0.1:1"), "unknown argument --worker.listen"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence_and_nothing_is_made(
    flags: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert said in said_of(capsys, "--port", str(free_port(2)), *flags)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_key_file_without_keys_and_a_port_in_use_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    keys, port = tmp_path / "keys", free_port(2)
    keys.write_text("# none\n")
    keys.chmod(0o600)
    assert "holds no key" in said_of(capsys, "--port", str(port), "--api-key-file", str(keys))
    keys.write_text(KEYS)
    keys.chmod(0o600)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        flags = ("--port", str(port), "--api-key-file", str(keys))
        assert f"cannot listen on 127.0.0.1:{port}" in said_of(capsys, *flags)


def test_flags_of_a_service_reach_it_and_no_other() -> None:
    flags = ("--worker.host-kv-gib", "2", "--worker.no-prefix-caching", "--gateway.max-waiting=9")
    specs = process_specs(up.parse(flags), num_cores=2)
    for spec in specs:
        if spec.service == "worker":
            config = load_config(WorkerConfig, spec.flags)
            assert (config.host_kv_gib, config.prefix_caching) == (2.0, False)
        elif spec.service == "gateway":
            assert load_config(GatewayConfig, spec.flags).max_waiting == 9
        else:
            assert not any("host-kv" in flag or "max-waiting" in flag for flag in spec.flags)


def test_a_run_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    flags = ("--port", str(free_port(2)), "--log-dir", str(folder))
    folder.chmod(0o777)
    assert f"chmod o-w {folder}" in said_of(capsys, *flags)
    if os.getuid() == 0:
        folder.chmod(0o755)
        os.chown(folder, 65_534, 65_534)
        assert "belongs to the user with id 65534" in said_of(capsys, *flags)
    assert list(folder.iterdir()) == []


async def test_a_run_folder_is_one_clusters_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    (tmp_path / "gateway.pid").write_text("1")  # what is left of others counts for nothing
    (tmp_path / "store.sock").write_text("")
    held = hold_folder(tmp_path)
    cluster = LocalCluster(up.parse(["--port", str(free_port(2))]), tmp_path)
    with pytest.raises(HeadwayError, match=f"--log-dir is {tmp_path}, where another cluster runs"):
        await cluster.start()
    await cluster.stop()
    os.close(held)
    os.close(hold_folder(tmp_path))


async def test_a_cluster_takes_nobodys_ids_in_a_store_that_is_shared(
    tmp_path: Path, store_url: str
) -> None:
    name = f"ids-{tmp_path.name[-9:]}"
    store = await Store.connect(store_url, name)
    options = up.parse(["--port", str(free_port(2))])
    cluster = LocalCluster(options, tmp_path, store=store_url, name=name)
    specs = [process.spec for process in cluster.supervisor.processes]
    await store.join(Member("worker", "decode-1", "10.0.0.5:1"), ttl=0.5)  # it was killed
    await refuse_taken_ids(specs, cluster.config)
    await store.join(Member("worker", "decode-9", "10.0.0.5:1"), ttl=60)
    await refuse_taken_ids(specs, cluster.config)
    await store.join(Member("worker", "decode-1", "10.0.0.5:1"), ttl=600)
    with pytest.raises(HeadwayError, match=r"a worker 'decode-1' at 10\.0\.0\.5:1 already: give"):
        await cluster.start()
    await cluster.stop()
    await store.close()


def listens(config: ServiceConfig) -> set[str]:
    """Hosts that a service binds for gRPC."""
    more = [config.sink_listen] if isinstance(config, GatewayConfig) else []
    return {address.rpartition(":")[0] for address in (config.listen, *more)}


def test_a_cluster_of_this_machine_alone_has_no_certificates(tmp_path: Path) -> None:
    for flags in ((), ("--host", "127.0.0.2"), ("--host", "::1")):
        cluster = LocalCluster(up.parse(flags), tmp_path)
        assert cluster.config.tls_cert is None
        for process in cluster.supervisor.processes:
            if process.spec.service in CONFIGS:
                config = read_config(CONFIGS[process.spec.service], process.spec.flags)
                assert config.tls_cert is None
                assert listens(config) <= {"127.0.0.1", "127.0.0.2", "[::1]"}
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize(
    ("flags", "outside"),
    [
        (("--host", "0.0.0.0"), {"127.0.0.1", "0.0.0.0"}),
        (("--host", "0.0.0.0", "--listen", "0.0.0.0"), {"0.0.0.0"}),
        (("--listen", "::"), {"127.0.0.1", "[::]"}),
        (("--host", "10.0.0.5"), {"127.0.0.1", "10.0.0.5"}),
    ],
)
def test_a_cluster_that_others_reach_has_a_certificate_for_each_role(
    flags: tuple[str, ...], outside: set[str], tmp_path: Path
) -> None:
    cluster = LocalCluster(up.parse(flags), tmp_path)
    assert cluster.config.tls_key == (tmp_path / "certs/supervisor/key.pem").absolute()
    found: set[str] = set()
    for process in cluster.supervisor.processes:
        service = process.spec.service
        if service not in CONFIGS:
            continue
        config = read_config(CONFIGS[service], process.spec.flags)
        place = (tmp_path / "certs" / service).absolute()
        files = (config.tls_cert, config.tls_key, config.tls_ca)
        assert files == tuple(place / name for name in ("cert.pem", "key.pem", "ca.pem"))
        assert (config.tls_client_ca is not None) is (service == "gateway")
        found |= listens(config)
    assert found == outside


def test_other_certificates_are_used_where_they_are_given(tmp_path: Path) -> None:
    given = tmp_path / "given"
    flags = ("--host", "127.0.0.1", "--certs", str(given))
    for _ in range(2):  # made, then used
        cluster = LocalCluster(up.parse(flags), tmp_path / "run")
        assert cluster.config.tls_cert == (given / "supervisor/cert.pem").absolute()
    assert not (tmp_path / "run" / "certs").exists()


def test_adapters_reach_the_gateway_and_every_worker() -> None:
    options = up.parse(["--lora", "sql=a=b, c", "--lora", "org/poems=d"])
    for spec in process_specs(options, num_cores=1):
        config = read_config(CONFIGS[spec.service], spec.flags)
        if isinstance(config, GatewayConfig | WorkerConfig):
            assert config.lora == {"sql": "a=b, c", "org/poems": "d"}


def test_a_value_needs_a_flag_before_it() -> None:
    assert parse_service_flags(["--worker.dp", "2"]) == {"worker": ("--dp", "2")}
    with pytest.raises(HeadwayError, match="unknown argument 2"):
        parse_service_flags(["2", "--worker.dp"])


def test_the_small_model_goes_by_its_name_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = str(ROOMS / "models" / "headway-mini")
    assert up.parse([]).model == up.parse(["--model", "headway-mini"]).model == shipped
    assert load_config(WorkerConfig, []).model == load_config(GatewayConfig, []).model == shipped
    assert up.parse(["--model", "org/other"]).model == "org/other"
    (tmp_path / "headway-mini").mkdir()
    assert up.parse(["--model", "headway-mini"]).model == "headway-mini"


def test_a_service_runs_alone_and_the_version_is_told() -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert run("--version").startswith("headway ")
    assert "--http-port" in run("service", "gateway", "--help")


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ((), ["prefill", "decode", "decode"]),
        (("--unified", "3"), ["unified"] * 3),
        (("--unified", "1", "--prefill", "1"), ["prefill", "decode", "decode", "unified"]),
        (("--preset", "headway"), ["unified"] * 3),
        (("--preset", "headway", "--unified", "2"), ["unified"] * 2),
        (("--preset", "headway", "--unified", "0"), ["prefill", "decode", "decode"]),
    ],
)
def test_unified_workers_alone_are_started_where_no_other_role_is_named(
    flags: tuple[str, ...], roles: list[str]
) -> None:
    specs = process_specs(up.parse(flags), num_cores=2)
    assert [spec.role for spec in specs if spec.service == "worker"] == roles


def test_what_loads_a_model_is_copied_from_what_has_imported_torch() -> None:
    specs = {s.service_id: s.imports for s in process_specs(up.parse(()), num_cores=2)}
    for service in ("gateway", "scheduler", "autoscaler"):
        assert specs[service] == ("services.runtime.service", f"services.{service}.service")
    workers = specs["decode-1"]
    assert workers is not None
    assert "services.worker.engine.backend" in workers
    assert not any("transformers" in each for each in workers), "the small model is plain"
    for flags, module in (
        (("--engine", "vllm"), ""),
        (("--worker.engine=vllm",), ""),
        (("--engine", "openai"), "services.worker.openai.engine"),
    ):
        (copied,) = {
            s.imports for s in process_specs(up.parse(flags), num_cores=2) if s.service == "worker"
        }
        assert module in (copied or ("",))
        assert "services.worker.engine.backend" not in (copied or ())
