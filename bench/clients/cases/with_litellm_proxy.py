"""LiteLLM as a proxy in front, asked over the APIs that it offers beside a chat's."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import openai

from .asked import (
    ASK_WEATHER,
    CITY,
    EXTRACT,
    FORM,
    KEY,
    MESSAGES,
    NAME,
    SECONDS,
    SUM,
    TOTAL,
    WEATHER,
    At,
    cases,
)

_PR_SET_PDEATHSIG = 1
_START = 110.0  # seconds
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


def _with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@cache
def proxy(at: At) -> str:
    """Start one for all cases; it ends with this process (Linux). Return its URL."""
    folder = Path(tempfile.mkdtemp())
    backend = {"model": f"hosted_vllm/{at.model}", "api_base": at.v1, "api_key": KEY}
    served = {"model_name": at.model, "litellm_params": backend}
    (folder / "config.yaml").write_text(json.dumps({"model_list": [served]}), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = str(Path(sys.executable).with_name("litellm"))
    log = folder / "log"
    process = subprocess.Popen(
        [command, "--config", "config.yaml", "--host", "127.0.0.1", "--port", port],
        cwd=folder,
        env={**os.environ, **_QUIET},
        stdin=subprocess.DEVNULL,
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        preexec_fn=_with_parent,
    )
    url, give_up_at = f"http://127.0.0.1:{port}", time.monotonic() + _START
    while time.monotonic() < give_up_at and process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/health/liveliness", timeout=5).status_code == 200:
                return url
        time.sleep(0.2)
    raise RuntimeError(f"the proxy does not start: {log.read_text(errors='replace')[-300:]}")


def start(at: At) -> None:
    proxy(at)


def _client(at: At) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy(at)}/v1", api_key=KEY, timeout=SECONDS, max_retries=0)


def _ask(at: At, **more: Any) -> Any:
    fields: Any = {"model": at.model, "messages": MESSAGES, "temperature": 0, **more}
    return _client(at).chat.completions.create(**fields)


def chat(at: At) -> None:
    reply = _ask(at)
    assert reply.choices[0].message.content == TOTAL
    assert reply.choices[0].message.reasoning_content
    assert reply.usage.completion_tokens > 0


def streamed(at: At) -> None:
    chunks = list(_ask(at, stream=True, stream_options={"include_usage": True}))
    deltas = [each.choices[0].delta for each in chunks if each.choices]
    assert "".join(delta.content or "" for delta in deltas) == TOTAL
    assert chunks[-1].usage.completion_tokens > 0


def tools(at: At) -> None:
    (call,) = _ask(at, messages=ASK_WEATHER, tools=[WEATHER]).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": CITY}


def response_format(at: At) -> None:
    answer = _ask(at, messages=EXTRACT, response_format=FORM).choices[0].message
    assert json.loads(answer.content)["name"] == NAME


def completion(at: At) -> None:
    asked: Any = {"model": at.model, "prompt": SUM, "max_tokens": 4, "temperature": 0}
    assert _client(at).completions.create(**asked).usage.completion_tokens in range(1, 5)


def responses(at: At) -> None:
    reply = _client(at).responses.create(model=at.model, input=SUM, temperature=0)
    assert reply.output_text == TOTAL


def _messages(at: At, **more: Any) -> httpx.Response:
    body = {"model": at.model, "max_tokens": 600, "messages": MESSAGES, "temperature": 0, **more}
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    return httpx.post(f"{proxy(at)}/v1/messages", json=body, headers=headers, timeout=SECONDS)


def messages(at: At) -> None:
    reply = _messages(at).json()
    assert [each["text"] for each in reply["content"] if each["type"] == "text"] == [TOTAL]
    assert reply["stop_reason"] == "end_turn"


def streamed_messages(at: At) -> None:
    lines = _messages(at, stream=True).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == TOTAL
    assert events[-1]["type"] == "message_stop"


def wrong_request(at: At) -> None:
    try:
        _ask(at, temperature=-1)
    except openai.BadRequestError as refused:
        assert "temperature" in str(refused)
    else:
        raise AssertionError("a wrong temperature is taken")


CASES = cases(
    *(start, chat, streamed, tools, response_format, completion, responses, messages),
    *(streamed_messages, wrong_request),
)
