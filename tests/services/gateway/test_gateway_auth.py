"""API keys: made once, kept hashed, checked."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cli.key import add_options
from headway.errors import Code, HeadwayError
from headway.service_class import shipped_classes
from services.gateway import auth
from services.gateway.auth import KeyRing, key_line, new_key
from services.runtime import log_limit
from tests.fakes.gateway_harness import Cluster, cluster, until


def ring(tmp_path: Path, text: str) -> KeyRing:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    return KeyRing.load(file)


def test_a_key_lets_in_under_its_name(tmp_path: Path) -> None:
    key = new_key()
    keys = ring(tmp_path, f"# team\n\n{key_line('ann', key)}\n{key_line('bob', new_key())}\n")
    with pytest.raises(HeadwayError):
        keys.check("")
    assert keys.check(f"Bearer {key}") == "ann"
    assert keys.check(f"bearer  {key} ") == "ann"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic x", "Bearer wrong", "Bearer é"])
def test_anything_else_is_unauthenticated(tmp_path: Path, header: str) -> None:
    keys = ring(tmp_path, key_line("ann", new_key()))
    with pytest.raises(HeadwayError) as caught:
        keys.check(header)
    assert caught.value.code is Code.UNAUTHENTICATED


def test_without_a_file_everybody_is_let_in() -> None:
    keys = KeyRing.load(None)
    assert keys.check("Bearer anything") == ""
    assert keys.check("") == ""


@pytest.mark.parametrize("text", ["", "# none\n", "ann:secret\n", "ann\n"])
def test_a_file_without_good_keys_is_refused_not_taken_for_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(HeadwayError, match="headway key"):
        ring(tmp_path, text)


def test_the_file_does_not_hold_the_key() -> None:
    key = new_key()
    assert key not in key_line("ann", key)
    assert len(key) > 40
    assert new_key() != key


def test_the_command_prints_a_key_and_the_line_that_lets_it_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    args = parser.parse_args(["ann"])
    assert args.run(args) == 0
    key, line = (row.rpartition(": ")[2] for row in capsys.readouterr().out.splitlines())
    assert ring(tmp_path, line).check(f"Bearer {key}") == "ann"


@pytest.mark.parametrize("classes", ["batch,", ",", "a b", "batch,gold"])
def test_a_key_names_classes_that_there_are(tmp_path: Path, classes: str) -> None:
    line = key_line("ann", "a", options={"classes": "interactive,agent"})
    assert ring(tmp_path, line).of_client("key ann").classes == ("interactive", "agent")
    (tmp_path / "keys").write_text(line.replace("interactive,agent", classes))
    with pytest.raises(HeadwayError):
        KeyRing.load(tmp_path / "keys", shipped_classes())


def test_the_command_refuses_a_name_that_would_break_the_file() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    args = parser.parse_args(["a:b"])
    assert args.run(args) == 2


def test_a_file_that_everybody_may_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line("ann", "secret"))
    file.chmod(0o644)
    with pytest.raises(HeadwayError, match="chmod o-rwx"):
        KeyRing.load(file)
    file.chmod(0o640)
    assert KeyRing.load(file).check("Bearer secret") == "ann"


def test_only_a_key_with_that_role_is_an_operators(tmp_path: Path) -> None:
    keys = ring(tmp_path, f"{key_line('ann', 'a')}\n{key_line('ops', 'o', operator=True)}\n")
    assert keys.check("Bearer o") == "ops"
    assert (keys.is_operator("ops"), keys.is_operator("ann")) == (True, False)
    assert not keys.is_operator("")
    assert KeyRing.load(None).is_operator("")


def test_a_request_belongs_to_the_key_that_sent_it(tmp_path: Path) -> None:
    lines = [key_line("ann", "a"), key_line("bob", "b"), key_line("ops", "o", operator=True)]
    keys = ring(tmp_path, "\n".join(lines))
    request_id = keys.new_id("chatcmpl", "ann")
    again = KeyRing.load(tmp_path / "keys")  # another gateway, or the same after a restart
    for name in ("ann", "ops"):
        again.require_owner(name, request_id)
        again.require_owner(name, f"{request_id}-3")
    for asked in (request_id, "chatcmpl-1", "", "é", request_id[:-1], keys.new_id("x", "ann")):
        with pytest.raises(HeadwayError) as caught:
            again.require_owner("bob", asked)
        assert caught.value.code is Code.PERMISSION_DENIED
    with pytest.raises(HeadwayError):
        again.require_owner("ann", keys.new_id("chatcmpl", "bob"))


def test_the_last_key_can_be_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_SECONDS_BETWEEN_LOOKS", 0.0)
    file = tmp_path / "keys"
    keys = ring(tmp_path, key_line("ann", "a"))
    for text in ("# none now\n", ""):
        file.write_text(text)
        with pytest.raises(HeadwayError, match="not known here"), capture_logs() as logs:
            keys.check("Bearer a")
        assert [each["num_keys"] for each in logs] == [0]
    file.write_text(key_line("bob", "b"))
    assert keys.check("Bearer b") == "bob"


def test_two_keys_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="line 2: there is a key ann already"):
        ring(tmp_path, f"{key_line('ann', 'a')}\n{key_line('ann', 'b')}\n")


def test_a_file_that_changes_is_read_again_and_a_broken_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_SECONDS_BETWEEN_LOOKS", 0.0)
    file = tmp_path / "keys"
    keys = ring(tmp_path, f"{key_line('ann', 'a')}\n{key_line('bob', 'b')}\n")
    file.write_text(key_line("bob", "b"))
    with pytest.raises(HeadwayError):
        keys.check("Bearer a")
    assert keys.check("Bearer b") == "bob"
    for text in ("nonsense", f"{key_line('ann', 'a')}\n{key_line('ann', 'c')}"):
        file.write_text(text)
        assert keys.check("Bearer b") == "bob"
    file.unlink()
    assert keys.check("Bearer b") == "bob"


async def get(running: Cluster, path: str, key: str = "") -> tuple[int, Any]:
    async with running.http() as client:
        found = await client.get(path, headers={"authorization": f"Bearer {key}"} if key else {})
        is_json = "json" in found.headers["content-type"]
        return found.status_code, found.json() if is_json else found.text


async def test_a_client_sees_its_own_requests_and_nothing_of_the_rest(
    tmp_path: Path, store_url: str
) -> None:
    lines = [key_line("ann", "a"), key_line("bob", "b"), key_line("ops", "o", operator=True)]
    ring(tmp_path, "\n".join(lines))
    async with cluster(tmp_path, store_url, api_key_file=tmp_path / "keys") as running:
        with capture_logs() as logs:
            answer = await running.openai("a").completions.create(model="tiny", prompt="my secret")
            await until(lambda: any(log["event"] == "request_ended" for log in logs))
        (ended,) = (log for log in logs if log["event"] == "request_ended")
        assert (ended["client"], ended["model"], ended["status"]) == ("key ann", "tiny", "stop")
        assert (ended["num_prompt_tokens"], ended["num_output_tokens"]) == (9, 9)
        assert "secret" not in str(logs)
        codes = {key: (await get(running, f"/explain/{answer.id}", key))[0] for key in "abo"}
        assert codes == {"a": 200, "b": 403, "o": 200}
        assert (await get(running, f"/explain/{answer.id}"))[0] == 401
        metrics = {key: (await get(running, "/metrics", key))[0] for key in ("", "a", "o")}
        assert metrics == {"": 401, "a": 403, "o": 200}
        assert await get(running, "/health") == (200, {"status": "ok"})
        assert await get(running, "/health", "a") == (200, {"status": "ok"})
        assert "scheduler_connected" in (await get(running, "/health", "o"))[1]


async def test_a_key_that_is_taken_out_is_refused_soon(tmp_path: Path, store_url: str) -> None:
    ring(tmp_path, f"{key_line('ann', 'a')}\n{key_line('bob', 'b')}\n")
    async with cluster(tmp_path, store_url, api_key_file=tmp_path / "keys") as running:
        assert (await get(running, "/v1/models", "a"))[0] == 200
        (tmp_path / "keys").write_text(key_line("bob", "b"))
        async with asyncio.timeout(60):
            while (await get(running, "/v1/models", "a"))[0] != 401:
                await asyncio.sleep(0.05)
        assert (await get(running, "/v1/models", "b"))[0] == 200


async def test_a_request_that_is_refused_has_a_line_in_the_log(
    tmp_path: Path, store_url: str
) -> None:
    ring(tmp_path, key_line("ann", "a"))
    async with cluster(tmp_path, store_url, api_key_file=tmp_path / "keys") as running:
        with capture_logs() as logs:
            assert (await get(running, "/v1/models"))[0] == 401
            assert (await get(running, "/v1/models/other", "a"))[0] == 404
        refused = [log for log in logs if log["event"] == "request_refused"]
    assert [(log["path"], log["code"]) for log in refused] == [
        ("/v1/models", "unauthenticated"),
        ("/v1/models/other", "not_found"),
    ]
    assert refused[1]["client"] == "key ann"


async def test_a_refusal_is_not_laid_to_who_asked_before_on_the_connection(
    tmp_path: Path, store_url: str
) -> None:
    ring(tmp_path, key_line("ann", "a"))
    async with cluster(tmp_path, store_url, api_key_file=tmp_path / "keys") as running:
        with capture_logs() as logs:
            async with running.http() as client:
                for key, status in (("a", 200), ("b", 401)):
                    headers = {"authorization": f"Bearer {key}"}
                    found = await client.get("/v1/models", headers=headers)
                    assert found.status_code == status
        (refused,) = [log for log in logs if log["event"] == "request_refused"]
    assert refused["client"].startswith("address ")


async def test_strangers_do_not_fill_the_log_and_clients_keep_their_lines(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_limit, "_PERIOD", 1e9)
    ring(tmp_path, key_line("ann", "a"))
    async with cluster(tmp_path, store_url, api_key_file=tmp_path / "keys") as running:
        with capture_logs() as logs:
            for _ in range(70):
                assert (await get(running, "/v1/models"))[0] == 401
            assert (await get(running, "/v1/models/other", "a"))[0] == 404
    refused = [log for log in logs if log["event"] == "request_refused"]
    assert len([log for log in refused if log["code"] == "unauthenticated"]) == 60
    assert refused[-1]["client"] == "key ann"


def test_a_key_of_an_unknown_class_is_refused_when_the_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line("ann", "secret", options={"class": "chat"}) + "\n")
    file.chmod(0o600)
    with pytest.raises(HeadwayError, match=r"key ann: .*'chat'.*interactive, agent, batch"):
        KeyRing.load(file, shipped_classes())
    file.write_text(key_line("ann", "secret", options={"class": "agent"}) + "\n")
    assert KeyRing.load(file, shipped_classes()).of_client("key ann").service_class == "agent"
