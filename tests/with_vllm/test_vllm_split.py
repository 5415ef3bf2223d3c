"""Prompts apart from decoding over two plain vLLMs: the picker names both, NIXL carries the KV."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.vllm.server import EngineLimits, Server, VllmTarget, serving
from services.endpoints.vllm_metrics import value_of
from services.local.store import free_port

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("nixl") is None, reason="nixl is not installed"),
    pytest.mark.skipif(find_spec("envoy") is None, reason="headway[picker] is not installed"),
]
_MODEL = Path(__file__).parents[2] / "models" / "headway-mini"
_TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
_PREFILLER = "x-prefiller-host-port"


def _server() -> Server:
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "UCX_NET_DEVICES": "lo",
    }
    flags = ("--max-model-len", "1024", "--kv-transfer-config", json.dumps(_TRANSFER))
    return Server(str(_MODEL), EngineLimits(max_running=8), flags, environment)


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


async def _external_tokens(address: str) -> float:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{address}/metrics")).text
    name = "vllm:external_prefix_cache_hits_total"
    return sum(value_of(line) for line in text.splitlines() if line.startswith(name))


async def test_a_split_prompt_is_decoded_from_the_other_endpoints_kv(tmp_path: Path) -> None:
    from tests.fakes.picker_rig import Exchange, picker, until

    async with AsyncExitStack() as undo:
        targets: list[VllmTarget] = await asyncio.gather(
            *(undo.enter_async_context(serving(_server(), tmp_path, f"v{n}")) for n in range(2))
        )
        prefill, decode = (each.url.removeprefix("http://") for each in targets)
        file = tmp_path / "endpoints.toml"
        file.write_text(
            f'[[endpoints]]\naddress = "{prefill}"\nrole = "prefill"\n'
            f'[[endpoints]]\naddress = "{decode}"\nrole = "decode"\n'
        )
        service = await undo.enter_async_context(
            picker(endpoints="", endpoints_file=file, split_from=0.005)
        )
        await until(lambda: [e.health for e in service.endpoints()] == ["up", "up"])
        tokens = [30 + n * 7 % 170 for n in range(300)]
        for prompt, is_split in ((tokens, True), (tokens[:20], False)):
            body = {"model": _MODEL.name, "prompt": prompt, "max_tokens": 16, "temperature": 0.0}
            body["ignore_eos"] = True
            before = await _external_tokens(decode)
            async with Exchange(service.address) as exchange:
                answer = await exchange.ask(json.dumps(body).encode())
                mutation = answer.request_headers.response.header_mutation
                found = {o.header.key: o.header.raw_value.decode() for o in mutation.set_headers}
                assert found["x-gateway-destination-endpoint"] == decode
                assert found.get(_PREFILLER, "") == (prefill if is_split else "")
                split = await _side_car(decode, found.get(_PREFILLER, ""), body)
            whole = await _side_car(prefill, "", body)
            assert split["choices"][0]["text"] == whole["choices"][0]["text"]
            came = await _external_tokens(decode) - before
            assert came == (len(prompt) if is_split else 0)
