"""A start is timed to the first answer, with all processes that it took."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.start import Starting, time_start
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


def starting(script: str) -> Starting:
    port = free_port()
    command = (sys.executable, "-c", script, str(port))
    return Starting("a server", command, f"http://127.0.0.1:{port}", "m")


def test_the_first_answer_ends_a_start_and_a_refusal_does_not(tmp_path: Path) -> None:
    times = time_start(starting(SERVER), tmp_path, within=60.0)
    assert times.cpu > 0
    assert times.wall > 0


def test_a_server_that_ends_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="a server"):
        time_start(starting("raise SystemExit(3)"), tmp_path, within=60.0)
