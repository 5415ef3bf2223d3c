"""A short film of a simulated run, and a server of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cli.simulate_console import filmed
from headway.sim.experiment import Run
from headway.sim.film import Film
from headway.sim.scenario import parse_scenario
from results.film_server import FilmServer

SCENARIO = """
name = "small"
[[instances]]
role = "prefill"
count = 1
profile = "llama-8b-a100"
[[instances]]
role = "decode"
count = 2
profile = "llama-8b-a100"
[workload]
process = "poisson"
rate = 4.0
num_requests = 80
[[workload.classes]]
name = "chat"
prompt = { distribution = "lognormal", median = 400, sigma = 1.0, max = 2048 }
answer = { distribution = "lognormal", median = 100, sigma = 0.8, max = 400 }
[[failures]]
instance = "decode-2"
at = 8.0
back_after = 4.0
"""


def short_film() -> tuple[Film, Run]:
    return filmed(parse_scenario(SCENARIO, "the test"), "sbs", "", "")


@contextmanager
def served(film: Film, run: Run) -> Iterator[FilmServer]:
    server = FilmServer(film, run)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
