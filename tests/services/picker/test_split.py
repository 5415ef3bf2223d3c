"""A pool whose prompts are computed apart: the side-car that decodes is told by whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.endpoints.endpoints_file import read_entries
from tests.fakes.picker_rig import Endpoints, Exchange, picker, until

_PREFILLER = "x-prefiller-host-port"


async def test_a_long_prompt_names_who_computes_it_and_a_short_one_nobody(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    prefill, decode = await endpoints.add(), await endpoints.add()
    file = tmp_path / "endpoints.toml"
    file.write_text(
        f'[[endpoints]]\naddress = "{prefill}"\nrole = "prefill"\n'
        f'[[endpoints]]\naddress = "{decode}"\nrole = "decode"\n'
    )
    # Nothing has been measured: 8,192 tokens of four bytes take 0.05 s.
    async with picker(endpoints="", endpoints_file=file, split_from=0.02) as service:
        await until(lambda: [e.health for e in service.endpoints()] == ["up", "up"])
        for size, named in ((20_000, prefill), (200, "")):
            async with Exchange(service.address) as exchange:
                body = json.dumps({"prompt": "x" * size}).encode()
                answer = await exchange.ask(body, others={_PREFILLER: "10.9.9.9:22"})
                mutation = answer.request_headers.response.header_mutation
                found = {o.header.key: o.header.raw_value.decode() for o in mutation.set_headers}
                assert found.pop("x-gateway-destination-endpoint") == decode
                assert found == ({_PREFILLER: named} if named else {})
                assert (_PREFILLER in mutation.remove_headers) is not bool(named)
                assert {"x-encoder-hosts-ports", "x-llm-d-kv-cache-source-host-port"} <= set(
                    mutation.remove_headers
                )


def test_a_role_that_there_is_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.toml"
    for role in ("convertible", "both"):
        file.write_text(f'[[endpoints]]\naddress = "10.0.0.1:8000"\nrole = "{role}"\n')
        with pytest.raises(HeadwayError, match=r"endpoints\.0\.role"):
            read_entries(file)
