"""``headway simulate … --console``: the page over a simulated run, until Ctrl-C."""

from __future__ import annotations

from headway.presets import find_preset, parse_choice
from headway.sim.experiment import Run, cluster_spec, simulate
from headway.sim.film import Film
from headway.sim.scenario import Scenario
from results.film_server import FilmServer


def filmed(scenario: Scenario, preset: str, policy: str, settings: str) -> tuple[Film, Run]:
    """Simulate one run, and film it."""
    conditions = scenario.conditions.but(*parse_choice(policy, settings))
    spec = cluster_spec(find_preset(preset), conditions)
    film = Film(scenario.name, preset)
    run = simulate(
        spec,
        scenario.workload.load(1),
        ended=film.ended,
        keeps_decisions=True,
        keeps_lives=True,
        failures=scenario.failures,
        watch=film.watch,
    )
    return film, run


def serve(film: Film, run: Run, port: int) -> None:
    """Serve the page until Ctrl-C."""
    with FilmServer(film, run, port) as server:
        seconds = film.every * (len(film.frames) - 1)
        print(f"{len(film.frames)} frames of {seconds:.0f} virtual seconds: {server.url}")
        print("Ctrl-C ends it.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
