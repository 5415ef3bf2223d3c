"""Prompts apart from decoding, over a stock vLLM and one with the plug-in; NIXL carries the KV."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from bench.runner.started import LiveTarget
from bench.vllm.server import EngineLimits, Server, serving
from services.endpoints.vllm_metrics import value_of
from services.local.store import free_port

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.settings import SETTING

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(find_spec("nixl") is None, reason="nixl is not installed"),
]
_MODEL = Path(__file__).parents[2] / "models" / "headway-mini"
_TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
_PREFILLER = "x-prefiller-host-port"
_PROMPT = [30 + n * 7 % 170 for n in range(300)]


def _server(*flags: str) -> Server:
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "UCX_NET_DEVICES": "lo",
        SETTING: json.dumps({"batching": "headway"}),
    }
    flags += ("--max-model-len", "1024", "--kv-transfer-config", json.dumps(_TRANSFER))
    return Server(str(_MODEL), EngineLimits(max_running=8), flags, environment)


class _Pair(NamedTuple):
    """Addresses of two vLLMs that send KV to each other: a stock one, and one with the plug-in."""

    stock: str
    plugged: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[_Pair]:
    folder = tmp_path_factory.mktemp("servers")
    servers = _server(), _server("--scheduler-cls", "headway_vllm.HeadwayAsyncScheduler")
    async with AsyncExitStack() as undo:
        targets: list[LiveTarget] = await asyncio.gather(
            *(
                undo.enter_async_context(serving(server, folder, f"v{number}"))
                for number, server in enumerate(servers)
            )
        )
        yield _Pair(*(each.url.removeprefix("http://") for each in targets))


def _body(prompt: list[int], **changes: Any) -> dict[str, Any]:
    asked = {"model": _MODEL.name, "prompt": prompt, "max_tokens": 16, "temperature": 0.0}
    return {**asked, "ignore_eos": True, **changes}


async def _side_car(decode: str, prefill: str, body: dict[str, Any]) -> dict[str, Any]:
    """Take the steps that llm-d's takes in front of the endpoint that decodes."""
    async with httpx.AsyncClient(timeout=120) as client:

        async def ask(address: str, **changes: Any) -> dict[str, Any]:
            response = await client.post(f"http://{address}/v1/completions", json=body | changes)
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
            return answer

        if not prefill:
            return await ask(decode)
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        first = await ask(prefill, max_tokens=1, kv_transfer_params=asked)
        return await ask(decode, kv_transfer_params=first["kv_transfer_params"])


async def _come(address: str) -> float:
    """Return the tokens whose KV another vLLM has sent there."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{address}/metrics")).text
    name = "vllm:external_prefix_cache_hits_total"
    return sum(value_of(line) for line in text.splitlines() if line.startswith(name))


@pytest.mark.skipif(find_spec("envoy") is None, reason="headway[picker] is not installed")
async def test_a_split_prompt_is_decoded_from_the_other_endpoints_kv(
    pair: _Pair, tmp_path: Path
) -> None:
    from tests.fakes.picker_rig import Exchange, picker, until

    prefill, decode = pair
    file = tmp_path / "endpoints.toml"
    file.write_text(
        f'[[endpoints]]\naddress = "{prefill}"\nrole = "prefill"\n'
        f'[[endpoints]]\naddress = "{decode}"\nrole = "decode"\n'
    )
    async with picker(endpoints="", endpoints_file=file, split_from=0.005) as service:
        await until(lambda: [e.health for e in service.endpoints()] == ["up", "up"])
        for prompt, is_split in ((_PROMPT, True), (_PROMPT[:20], False)):
            body = _body(prompt)
            before = await _come(decode)
            async with Exchange(service.address) as exchange:
                answer = await exchange.ask(json.dumps(body).encode())
                mutation = answer.request_headers.response.header_mutation
                found = {o.header.key: o.header.raw_value.decode() for o in mutation.set_headers}
                assert found["x-gateway-destination-endpoint"] == decode
                assert found.get(_PREFILLER, "") == (prefill if is_split else "")
                split = await _side_car(decode, found.get(_PREFILLER, ""), body)
            whole = await _side_car(prefill, "", body)
            assert split["choices"][0]["text"] == whole["choices"][0]["text"]
            assert await _come(decode) - before == (len(prompt) if is_split else 0)


@pytest.mark.parametrize("is_decoder", [True, False], ids=["decodes", "prefills"])
async def test_kv_goes_between_the_plug_in_and_a_stock_vllm(pair: _Pair, is_decoder: bool) -> None:
    prefill, decode = pair if is_decoder else pair[::-1]
    for first in (40, 41) if is_decoder else (42, 43):
        body = _body([first, *_PROMPT], vllm_xargs={"headway_reasons": first % 2})
        before = await _come(decode)
        split = await _side_car(decode, prefill, body)
        assert await _come(decode) - before == 1 + len(_PROMPT)
        whole = await _side_car(pair.stock, "", body)
        assert split["choices"][0]["text"] == whole["choices"][0]["text"]
