"""An OpenAI endpoint on loopback whose model is the context's sum; it can be made to fail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from tests.fakes.paged import next_token


class OpenAIEndpoint:
    """What it serves, how it misbehaves, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.refused: set[str] = set()
        """Fields that it answers with 400."""
        self.reads = {"cache_salt", "structured_outputs", "thinking_token_budget"}
        self.reads |= {"bad_words", "prompt_logprobs"}
        """Fields that clients may leave out and that it does not ignore, whatever is in them."""
        self.names_tokens = True
        self.breaks_after: list[int] = []
        """For each of the next streams, the tokens after which its connection breaks."""
        self.at_a_time = 1
        """Tokens of an event, but for the last."""
        self.busy = 0
        """So many requests are answered with ``busy_status``, or hung up on if that is 0."""
        self.busy_status = 503
        self.instead = b""
        """Sent in place of every stream, if it is not empty."""
        self.noise = b""
        """Sent again and again while a stream does not go on, if it is not empty."""
        self.encoding = ""
        """The content encoding that its streams claim."""
        self.goes_on, self.lists_models, self.computes = Event(), Event(), Event()
        self.has_place = Event()
        """While it is not set, further streams wait for their first token."""
        for each in (self.goes_on, self.lists_models, self.computes, self.has_place):
            each.set()
        self.models = ["stock"]
        """Names that it lists, the first of which it is asked for without another."""
        self.listed = ""
        """Sent in place of the list of models, if it is not empty."""
        self.bodies: list[dict[str, Any]] = []
        self.cookies: list[str | None] = []
        """Cookies of each stream's request; every answer sets one."""
        self.num_hung_up = self.num_listings = self.num_begun = 0

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        wrong = sorted(self.refused & body.keys())
        wrong += [field for field in sorted(self.reads & body.keys()) if _is_wrong(field, body)]
        if wrong:
            _respond(handler, 400, {"error": {"message": f"{wrong[0]} is not supported"}})
        elif not body.get("stream"):
            self.computes.wait(60)
            choice = self._choice([next_token(body["prompt"])], body)
            if body.get("prompt_logprobs") is not None:
                choice["prompt_logprobs"] = [None, *map(_scores, body["prompt"][1:])]
            _respond(handler, 200, {"choices": [choice]})
        elif self.busy:
            self.busy -= 1
            if self.busy_status:
                _respond(handler, self.busy_status, {"error": {"message": "try again"}})
        else:
            self.bodies.append(body)
            self._stream(handler, body)

    def _stream(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Set-Cookie", "seen=yes")
        self.cookies.append(handler.headers.get("Cookie"))
        if self.encoding:
            handler.send_header("Content-Encoding", self.encoding)
        handler.end_headers()
        if self.instead:
            with suppress(OSError):
                handler.wfile.write(self.instead)
            return
        self.has_place.wait(60)
        self.num_begun += 1
        most = self.breaks_after.pop(0) if self.breaks_after else 1 << 30
        context = list(body["prompt"])
        for number in range(1, body["max_tokens"] + 1):
            if not self._goes_on(handler):
                return
            if number > most:
                return
            context.append(next_token(context))
            is_last = number == body["max_tokens"]
            if number % self.at_a_time and not is_last:
                continue
            choice = self._choice(context[-((number - 1) % self.at_a_time + 1) :], body)
            choice["finish_reason"] = "length" if is_last else None
            try:
                handler.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
                handler.wfile.flush()
            except OSError:
                self.num_hung_up += 1
                return
            time.sleep(0.002)
        handler.wfile.write(b"data: [DONE]\n\n")

    def _goes_on(self, handler: BaseHTTPRequestHandler) -> bool:
        """Wait until streams go on; return whether this one is still read."""
        while not self.goes_on.wait(0.05 if self.noise else 60) and self.noise:
            try:
                handler.wfile.write(self.noise)
                handler.wfile.flush()
            except OSError:
                return False
        return True

    def _choice(self, tokens: list[int], body: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": "x" * len(tokens), "finish_reason": "length"}
        if self.names_tokens and body.get("return_token_ids"):
            choice["token_ids"] = tokens
        if body.get("logprobs") is not None:
            names = [f"token_id:{token}" for token in tokens]
            choice["logprobs"] = {
                "tokens": names,
                "token_logprobs": [-0.5] * len(tokens),
                "top_logprobs": [{name: -0.5, "token_id:7": -1.5} for name in names],
            }
        return choice


def _scores(token: int) -> dict[str, Any]:
    """Return vLLM's entry of a prompt's token: the likeliest, and the token itself."""
    return {"7": {"logprob": -0.25, "rank": 1}, str(token): {"logprob": -token / 8, "rank": token}}


def _is_wrong(field: str, body: dict[str, Any]) -> bool:
    value = body[field]
    match field:
        case "cache_salt":
            return not isinstance(value, str)
        case "structured_outputs":
            return len(value.keys() & {"json", "regex", "choice", "grammar"}) != 1
        case "bad_words":
            return not all(isinstance(word, str) and word for word in value)
        case _:
            return bool(value < 0)


@contextmanager
def openai_endpoint(port: int = 0) -> Iterator[OpenAIEndpoint]:
    """Listen on a loopback port."""
    endpoint = OpenAIEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                endpoint.num_listings += 1
                endpoint.lists_models.wait(60)
                listed = [{"id": name, "max_model_len": 512} for name in endpoint.models]
                _respond(self, 200, endpoint.listed or {"data": listed})
            elif self.path == "/metrics":
                endpoint.num_listings += 1
                endpoint.lists_models.wait(60)
                text = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="100"} 1.0\n'
                _respond(self, 200, text)
            else:
                _respond(self, 404, {})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            endpoint.answer(self, json.loads(self.rfile.read(length)))

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    http.daemon_threads = True
    http.block_on_close = False
    endpoint.url = f"http://127.0.0.1:{http.server_port}"
    thread = Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.goes_on.set()
        endpoint.has_place.set()
        endpoint.lists_models.set()
        http.shutdown()
        http.server_close()
        thread.join()


def _respond(handler: BaseHTTPRequestHandler, status: int, body: object) -> None:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
