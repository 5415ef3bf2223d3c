"""A start is timed to the first answer, with all processes that it took."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.runner.comparison import compare
from cli.bench.start import Starting, Starts
from headway.errors import HeadwayError
from services.local.store import free_port

SERVER = """
import http.server, sys
class Answers(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_POST(self):
        Answers.asked += 1
        body = b'{"choices": [{}]}' if Answers.asked > 1 else b"{}"
        self.send_response(200 if Answers.asked > 1 else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def starts(script: str, folder: Path) -> Starts:
    def make(model: str, logs: Path) -> Starting:
        port = free_port()
        command = (sys.executable, "-c", script, str(port))
        return Starting(command, f"http://127.0.0.1:{port}", {})

    return Starts({"a server": make}, "m", folder, within=60.0)


async def test_the_first_answer_ends_a_start_and_a_refusal_does_not(tmp_path: Path) -> None:
    file = tmp_path / "starts.json"
    await compare(starts(SERVER, tmp_path), [1], file)
    (run,) = json.loads(file.read_text())["runs"]
    assert run["figures"]["cpu"] > 0
    assert run["figures"]["wall"] > 0


async def test_a_server_that_ends_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="a server"):
        await compare(starts("raise SystemExit(3)", tmp_path), [1], None)
