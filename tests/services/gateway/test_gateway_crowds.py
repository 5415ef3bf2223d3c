"""One client's flood of connections, requests or bytes is refused to that client alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from pathlib import Path

import httpx
import pytest

from headway.core.gateway.shares import Bound
from headway.errors import HeadwayError
from services.gateway import preparation
from services.gateway.api_call import ChatInput
from services.gateway.bounds import client_at, grpc_client
from services.gateway.config import GatewayConfig
from services.gateway.grammars import GrammarChecker
from services.gateway.http import edge
from services.gateway.model_loading import load_model
from services.gateway.openai.chat_template import ChatTemplate
from services.gateway.reading import ReadingThreads
from tests.fakes.gateway_harness import Cluster, cluster, write_keys
from tests.fakes.http_rig import Client, bounds, listening, post, until
from tests.fakes.tiny_model import write_model

OTHER = "127.0.0.2"


async def test_a_flood_of_silent_connections_is_refused_and_others_are_served() -> None:
    async with listening(shared=bounds(0.8)) as it:
        flood = [await it.client() for _ in range(20)]
        found = await flood[-1].response()
        assert found.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in found
        assert b"address 127.0.0.1 has 16 connections" in found
        other = await it.client(OTHER)
        assert (await other.ask(post(b"x"))).endswith(b"POST:x")
        assert (await flood[0].ask(post(b"y"))).endswith(b"POST:y")
        for client in flood:
            client.writer.close()
        await until(lambda: len(it.server.connections) == 1)
        assert await it.works()


async def test_a_flood_beyond_what_can_be_told_is_closed_without_a_word() -> None:
    async with listening(shared=bounds(0.8)) as it:
        flood = [await it.client() for _ in range(200)]
        told = await asyncio.gather(*(refused_or_closed(client) for client in flood[-130:]))
        assert True in told
        assert False in told
        assert (await (await it.client(OTHER)).ask(post(b"x"))).endswith(b"POST:x")


async def refused_or_closed(client: Client) -> bool:
    """Whether the client was told why it is refused; else its connection was closed."""
    try:
        return b"HTTP/1.1 429 " in await client.rest()
    except ConnectionResetError:
        return False


async def test_bodies_that_never_end_are_refused_to_their_client_alone() -> None:
    shared = bounds(0.8, buffered=5000)
    async with listening(shared=shared) as it:
        slow = [await it.client() for _ in range(6)]
        for client in slow:
            client.writer.write(post(b"x" * 990)[:-1])
        whole = await asyncio.gather(*(client.rest() for client in slow))
        assert sum(found.startswith(b"HTTP/1.1 429 ") for found in whole) >= 1
        assert b"bytes waiting" in max(whole, key=lambda found: b" 429 " in found)
        other = await it.client(OTHER)
        assert (await other.ask(post(b"x" * 990))).endswith(b"x" * 990)
        await until(lambda: shared.buffered.num_taken == 0)


async def test_uploads_that_are_given_up_leave_no_bytes_behind() -> None:
    shared = bounds(0.8, buffered=5000)
    async with listening(shared=shared) as it:
        for _ in range(50):
            client = await it.client()
            client.writer.write(post(b"x" * 990)[:-1])
            await client.writer.drain()
            client.writer.close()
        await until(lambda: not it.server.connections)
        assert shared.buffered.num_taken == 0
        assert await it.works()


async def test_pipelined_requests_count_until_they_are_answered() -> None:
    shared = bounds(0.8)
    async with listening(shared=shared) as it:
        client = await it.client()
        client.writer.write(post(b"", b"/hold") + post(b"x" * 900) * 2)
        await until(lambda: shared.buffered.num_taken >= 1800)
        it.handler.held[0].respond(200, "text/plain", b"held")
        for _ in range(3):
            await client.response()
        assert shared.buffered.num_taken == 0


async def test_answers_that_nobody_reads_count_as_buffered() -> None:
    shared = bounds(0.8, buffered=2_000_000)
    async with listening(shared=shared) as it:
        client = await it.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio types it too widely
        client.writer.write(post(b"", b"/hold"))
        await until(lambda: bool(it.handler.held))
        it.handler.held[0].respond(200, "text/plain", b"x" * 10_000_000)
        await until(lambda: it.handler.num_cut_off == 1)
        await until(lambda: not it.server.connections)
        assert shared.buffered.num_taken == 0


async def test_log_probabilities_that_wait_for_an_answers_end_count_as_buffered(
    tmp_path: Path, store_url: str
) -> None:
    body = {"model": "tiny", "prompt": "a", "ignore_eos": True, "logprobs": 20}
    async with (
        cluster(tmp_path, store_url, max_buffered_bytes=2**20, max_model_len=2048) as running,
        running.http() as client,
    ):
        most = await client.post("/v1/completions", json=body | {"max_tokens": 300})
        assert most.status_code == 200
        held = running.service._calls.threads.buffered
        await until(lambda: held.num_taken == 0)
        refused = await client.post("/v1/completions", json=body | {"max_tokens": 2000})
        assert refused.status_code == 429
        assert "bytes waiting and asks for" in refused.json()["error"]["message"]
        await until(lambda: held.num_taken == running.service.num_open == 0)
        events = await client.post(
            "/v1/completions", json=body | {"max_tokens": 2000, "stream": True}
        )
        assert events.text.count("data: ") > 100, "nothing waits for the end of a stream"


async def test_outputs_of_one_key_leave_room_for_another(tmp_path: Path, store_url: str) -> None:
    keys = write_keys(tmp_path)
    async with cluster(tmp_path, store_url, api_key_file=keys, max_waiting=100) as running:
        running.emulated.paused = True
        flood = [asyncio.create_task(ask(running, "a", n=16)) for _ in range(8)]
        await until(lambda: sum(task.done() for task in flood) == 3)
        assert running.service.num_open == 80
        other = asyncio.create_task(ask(running, "b", n=1))
        await until(lambda: running.service.num_open == 81)
        refused = [await task for task in flood if task.done()]
        assert {status for status, _ in refused} == {429}
        assert "key a has 80 requests without a token and asks for 16 more" in refused[0][1]
        running.emulated.paused = False
        for task in flood:
            task.cancel()
        await until(lambda: running.service.num_open <= 1)
        other.cancel()
        await until(lambda: running.service.num_open == 0)
        assert (await ask(running, "a", n=16))[0] == 200


async def ask(running: Cluster, key: str, *, n: int) -> tuple[int, str]:
    body = {"model": "tiny", "prompt": "ab", "n": n}
    async with running.http() as client:
        headers = {"authorization": f"Bearer hw-{key}"}
        response = await client.post("/v1/completions", json=body, headers=headers)
        return response.status_code, response.text


async def test_a_body_that_cannot_fit_the_model_is_refused_unread(running: Cluster) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += b"content-type: application/json\r\ncontent-length: 3000000\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(head)
    found = await asyncio.wait_for(reader.readuntil(b"}"), 10)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"can fit the model" in found
    writer.close()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_prompt_that_cannot_fit_the_model_is_not_tokenised(
    running: Cluster, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(running.service._models.find("tiny").codec), "encode", None)
    text = "a" * 100_000
    body: dict[str, object] = {"model": "tiny", "prompt": text}
    if "chat" in path:
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    async with running.http() as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400
    assert "at least 7" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == ("messages" if "chat" in path else "prompt")


async def test_the_longest_prompt_that_fits_is_taken_however_it_is_written(
    running: Cluster,
) -> None:
    text = "ü" * 1020
    content = json.dumps({"model": "tiny", "prompt": text, "max_tokens": 1}, indent=200).encode()
    async with running.http() as client:
        response = await client.post("/v1/completions", content=content)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 2040


async def test_long_jobs_of_one_client_do_not_hold_up_anothers_short_one() -> None:
    threads = ReadingThreads(Bound("bytes waiting", 10**8, 0.8, "--max-buffered-bytes"))
    go_on = threading.Event()
    long = [asyncio.create_task(threads.run("a", 4 * 10**6, go_on.wait)) for _ in range(6)]
    await asyncio.sleep(0)
    short = threads.run("b", 9000, lambda: hashlib.sha256(b"b").hexdigest())
    assert len(await asyncio.wait_for(short, 10)) == 64
    assert not any(task.done() for task in long)
    with pytest.raises(HeadwayError, match="a has 24000000 bytes waiting"):
        await threads.run("a", 10**8, go_on.wait)
    long[0].cancel()
    long[5].cancel()
    go_on.set()
    assert await asyncio.gather(*long[1:5]) == [True] * 4
    await asyncio.wait(long)
    assert threads.buffered.num_taken == 0
    threads.close()


@pytest.mark.parametrize("slow_part", ["the model's", "the client's own", "a grammar"])
@pytest.mark.parametrize("padding", [0, 9000], ids=["short", "long"])
async def test_what_is_slow_to_prepare_leaves_a_thread_to_others(
    slow_part: str, padding: int, tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def wait(*_: object) -> str:
        assert go_on.wait(100), "nobody else was answered"
        return "hi"

    own: dict[str, object] = {}
    match slow_part:
        case "the model's":
            monkeypatch.setattr(ChatTemplate, "render", wait)
            monkeypatch.setattr(preparation, "_SLOW_RENDER", -1.0, raising=False)
        case "the client's own":
            own["chat_template"] = "{{ 1 }}"
            monkeypatch.setattr(preparation, "render_foreign", wait)
        case _:
            own["guided_regex"] = "hi"
            check = GrammarChecker.check
            monkeypatch.setattr(GrammarChecker, "check", lambda *a: wait() and check(*a))
    said = [{"role": "user", "content": "hi"}]
    own["user"] = "u" * padding
    body = {"model": "tiny", "messages": said, "max_tokens": 4, **own}
    async with (
        cluster(tmp_path, store_url, trust_request_chat_template=True) as running,
        running.http() as client,
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(local_address=OTHER)) as other,
        asyncio.timeout(90),
    ):
        path = "/v1/chat/completions"
        slow = [asyncio.create_task(client.post(path, json=body)) for _ in range(5)]
        await until(lambda: running.service._calls.threads._num_free <= 1)
        longer = {"model": "tiny", "prompt": "x", "max_tokens": 2, "user": "u" * 9000}
        answer = await other.post(f"{running.url}/v1/completions", json=longer)
        assert answer.status_code == 200, answer.text
        assert not any(each.done() for each in slow)
        go_on.set()
        assert {(await each).status_code for each in slow} == {200}


def preparation_of(template: str, folder: Path) -> preparation.Preparation:
    (write_model(folder) / "chat_template.jinja").write_text(template)
    return preparation.Preparation(load_model(GatewayConfig(model=str(folder))), float)


async def test_a_template_is_slow_while_its_renders_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "{% for i in range(messages[0].content | int) %}{% endfor %}hi"
    prepared = preparation_of(source, tmp_path / "tiny")
    monkeypatch.setattr(preparation, "_SLOW_RENDER", 2e-3)

    def render(turns: int) -> bool:
        prepared.token_ids(ChatInput([{"role": "user", "content": str(turns)}]))
        return prepared.renders_slowly

    assert not render(1)
    assert any(render(90_000) for _ in range(20))
    assert not all(render(1) for _ in range(200))


async def test_a_template_that_refuses_a_long_chat_in_proportion_is_not_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "{{ messages[0].content | list | length }}{{ raise_exception('no') }}"
    prepared = preparation_of(source, tmp_path / "tiny")
    seconds = iter(range(1000))
    monkeypatch.setattr(preparation, "thread_time", lambda: next(seconds) / 20)

    def refuse(content: str) -> bool:
        with pytest.raises(HeadwayError, match="does not take these messages: no"):
            prepared.token_ids(ChatInput([{"role": "user", "content": content}]))
        return prepared.renders_slowly

    assert not any(refuse("x" * 100_000) for _ in range(20))
    monkeypatch.setattr(preparation, "thread_time", lambda: next(seconds) / 10)
    assert any(refuse("x") for _ in range(20))


@pytest.mark.parametrize("path", ["tokenize", "detokenize"])
async def test_an_answer_of_tokens_is_written_in_a_thread(
    path: str, tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[str] = []

    def dumps(value: object) -> str:
        wrote.append(threading.current_thread().name)
        return json.dumps(value)

    monkeypatch.setattr(edge, "dumps", dumps)
    asked = {"prompt": "abc"} if path == "tokenize" else {"tokens": [97]}
    async with cluster(tmp_path, store_url) as running, running.http() as client:
        answer = await client.post(f"/{path}", json={"model": "tiny", **asked})
        assert answer.status_code == 200, answer.text
    assert [name.split("_")[0] for name in wrote] == ["tokenise"]


async def test_an_error_of_a_job_reaches_its_client() -> None:
    threads = ReadingThreads(Bound("bytes waiting", 100, 0.8, "--max-buffered-bytes"))
    with pytest.raises(ZeroDivisionError):
        await threads.run("a", 1, lambda: 1 // 0)
    assert await threads.run("a", 1, lambda: 7) == 7
    threads.close()


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("1.2.3.4", "address 1.2.3.4"),
        ("::ffff:1.2.3.4", "address 1.2.3.4"),
        ("2001:db8:1:2:3::4", "address 2001:db8:1:2::/64"),
        ("fe80::1%eth0", "address fe80::/64"),
    ],
)
def test_a_client_without_a_key_is_its_address_or_its_network(host: str, client: str) -> None:
    assert client_at(host) == client


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:1.2.3.4:567", "address 1.2.3.4"),
        ("ipv6:%5B2001:db8:1:2:3::4%5D:567", "address 2001:db8:1:2::/64"),
        ("ipv6:[::1]:567", "address ::/64"),
        ("unix:/run/x", "address unix"),
    ],
)
def test_a_grpc_peer_is_named_alike(peer: str, client: str) -> None:
    assert grpc_client(peer) == client
