"""Fuzzing of a real gateway over sockets: heads, bodies and many requests on one connection.

The gateway is a process of its own, with an emulated scheduler and worker behind it.
"""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.errors import Code, HeadwayError
from proof.fuzz.messages import damaged
from services.local.store import LocalStore, free_port
from services.local.tether import tethered
from services.runtime.rooms import SHIPPED_MODEL, child_environment, module_command

_START_PATIENCE = 60.0
PATIENCE = 15.0  # seconds for all answers; a head or body that never ends takes 0.3
_PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/health",
    "/v1/nothing",
    "*",
)
_VALUES = (
    *("null", "true", "-1", "0", "1", "2", "1e400", "-0.0", "1.5", "NaN", "9" * 40, '""', '"x"'),
    *(
        '"\\ud800"',
        '"\\u0000"',
        "[]",
        "{}",
        "[1,2]",
        '["a","b"]',
        '{"a":1}',
        '{"type":"json_object"}',
        '[{"type":"function","function":{"name":"f"}}]',
        '"required"',
        "[[[[[[]]]]]]",
        '"🙂"',
    ),
)
_FIELDS = (
    *("model", "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "n", "seed"),
    *("stream", "stop", "logprobs", "top_logprobs", "echo", "ignore_eos", "stop_token_ids"),
    *("stream_options", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("min_p", "logit_bias", "response_format", "tools", "best_of", "suffix", "user"),
    *("tool_choice", "guided_json", "guided_regex", "guided_choice", "structured_outputs"),
    *("bad_words", "allowed_token_ids", "continue_final_message", "skip_special_tokens"),
    *("chat_template_kwargs", "return_token_ids", "x\\ud800", "", "max_completion_tokens"),
)
_HEADERS = (
    *("Transfer-Encoding: chunked", "Content-Length: 5", "Content-Length: -1", "Connection: close"),
    *("Expect: 100-continue", "Host: a", "TE : chunked", "X: " + "y" * 5000, "Upgrade: h2c"),
    *("Authorization: Bearer x", "Content-Type: text/plain", "Accept: */*", "Cookie: \xff"),
)
_METHODS = ("GET", "PUT", "HEAD", "OPTIONS", "PRI", "post", "")
_USUAL = 0.95
_LAST = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""What follows every input, so that the gateway hangs up."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class HttpTarget:
    """An input is what one client writes to one connection."""

    unit = 1

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._folder = tempfile.TemporaryDirectory(prefix="headway-fuzz-")
        self._store = LocalStore()
        self._port = free_port(2)
        self._log = Path(self._folder.name) / "gateway.log"
        self._processes = self._start()
        try:
            self._wait()
        except HeadwayError:
            self.close()
            raise
        self._memory = self._resident_mib()

    def _start(self) -> Sequence[subprocess.Popen[bytes]]:
        cluster = ("--store", self._store.url, "--cluster", "fuzz")
        emulated = module_command("bench.gateway.emulated_worker", *cluster)
        gateway = module_command(
            "services.gateway",
            *cluster,
            *("--model", SHIPPED_MODEL, "--http-port", str(self._port)),
            *("--head-timeout", "0.3", "--body-timeout", "0.3", "--idle-timeout", "0.3"),
        )
        with self._log.open("wb") as log:
            return [
                subprocess.Popen(tethered(command), stdout=log, stderr=log, env=child_environment())
                for command in (emulated, gateway)
            ]

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_PATIENCE
        while time.monotonic() < deadline:
            if self._answers():
                return
            time.sleep(0.1)
        raise HeadwayError(Code.UNAVAILABLE, f"the gateway does not start: see {self._log}")

    def _answers(self) -> bool:
        """Return whether an ordinary request gets its answer."""
        body = json.dumps({"model": SHIPPED_MODEL, "prompt": "hi there", "max_tokens": 3})
        url = f"http://127.0.0.1:{self._port}/v1/completions"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Return how many answers had which status."""
        return self._outcomes

    # --- inputs -----------------------------------------------------------------------

    def make(self, rng: random.Random) -> bytes:
        """Return one request or several, some of them damaged."""
        return b"".join(self._request(rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))

    def _request(self, rng: random.Random) -> bytes:
        is_chat = rng.random() < 0.5
        body = _body(rng, is_chat)
        if rng.random() < 0.2:
            body = damaged(body, rng)
        headers = [
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if rng.random() < 0.15:
            headers.insert(rng.randrange(4), rng.choice(_HEADERS))
        if rng.random() < 0.03:
            del headers[rng.randrange(len(headers))]
        path = _PATHS[is_chat] if rng.random() < _USUAL else rng.choice(_PATHS)
        method = "POST" if rng.random() < _USUAL else rng.choice(_METHODS)
        head = f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
        request = head.encode("latin-1", "replace") + body
        return damaged(request, rng) if rng.random() < 0.1 else request

    # --- what comes of them -----------------------------------------------------------

    def attempt(self, given: bytes) -> str:
        """Write it, read until the gateway hangs up; every status must be below 500."""
        try:
            read = self._exchange(given)
        except TimeoutError:
            return f"no end of the answers within {PATIENCE:g} s"
        except OSError as error:
            if any(each.poll() is not None for each in self._processes):
                return "the gateway's process has ended"
            self._outcomes[type(error).__name__] += 1
            return ""
        statuses = [int(status) for status in _STATUS.findall(read)]
        self._outcomes.update([str(status) for status in statuses] or ["none"])
        wrong = [status for status in statuses if status >= 500]
        return f"status {wrong[0]}" if wrong else ""

    def _exchange(self, given: bytes) -> bytes:
        address = ("127.0.0.1", self._port)
        deadline = time.monotonic() + PATIENCE
        with socket.create_connection(address, timeout=PATIENCE) as connection:
            connection.sendall(given + _LAST)
            read = []
            while piece := connection.recv(65_536):
                read.append(piece)
                if time.monotonic() > deadline:
                    raise TimeoutError
            return b"".join(read)

    def check(self) -> str:
        """Return what is wrong with the gateway after all of it."""
        log = self._log.read_text(encoding="utf-8", errors="replace")
        if "Traceback (most recent call last)" in log or "unexpected_error" in log:
            return f"a traceback in the gateway's log: {log[log.find('Traceback') :][-600:]}"
        if not self._answers():
            return "an ordinary request has no answer any more"
        self._outcomes["memory at start, MiB"] = self._memory
        self._outcomes["memory at end, MiB"] = self._resident_mib()
        return ""

    def _resident_mib(self) -> int:
        status = Path(f"/proc/{self._processes[1].pid}/status")
        match = re.search(r"VmRSS:\s+(\d+)", status.read_text()) if status.exists() else None
        return int(match.group(1)) // 1024 if match else 0

    def close(self) -> None:
        """End what was started."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._store.close()
        self._folder.cleanup()


def _body(rng: random.Random, is_chat: bool) -> bytes:
    """Return a JSON object: a good request with some fields replaced."""
    fields = {
        "model": f'"{SHIPPED_MODEL}"',
        "max_tokens": str(rng.randint(1, 8)),
        "stream": rng.choice(("true", "false")),
    }
    if is_chat:
        fields["messages"] = '[{"role": "user", "content": "hi there"}]'
    else:
        fields["prompt"] = rng.choice(('"hi there"', "[60, 61, 62]", '["a", "b"]'))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        fields[rng.choice(_FIELDS)] = rng.choice(_VALUES)
    text = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    return ("{" + text + "}").encode("utf-8", "surrogatepass")
