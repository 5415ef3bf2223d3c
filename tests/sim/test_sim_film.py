"""A film of a simulated run: frames as a live gateway's console has them."""

from __future__ import annotations

import json

import httpx
import pytest

from headway.console.recent import COLUMNS
from headway.sim import film as film_of
from tests.fakes.films import served, short_film


def test_its_frames_show_requests_rates_and_a_worker_that_dies_and_is_back() -> None:
    film, run = short_film()
    frames = film.frames
    assert [round(frame["now"]) for frame in frames[:3]] == [0, 1, 2]
    assert any(frame["requests"]["order"] for frame in frames)
    states = [frame["workers"].get("decode-2", {}).get("state") for frame in frames]
    assert {"serving", "gone"} <= set(states)
    assert states.index("gone") > states.index("serving")
    rows = [dict(zip(COLUMNS, frame["point"], strict=True)) for frame in frames if frame["point"]]
    assert max(row["tokens_per_s"] for row in rows) > 0
    assert run.lives
    json.dumps(frames, allow_nan=False)


def test_a_long_run_has_no_more_frames_than_a_film_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(film_of, "MOST_FRAMES", 8)
    film, _ = short_film()
    assert 4 <= len(film.frames) <= 8
    assert film.every > 1.0
    assert film.frames[0]["now"] == 0.0


def test_the_page_the_film_and_the_lives_are_served_on_this_machine_alone() -> None:
    film, run = short_film()
    with served(film, run) as server, httpx.Client(timeout=300) as client:
        base = server.url.removesuffix("/console")
        assert "Headway console" in client.get(server.url).text
        assert client.get(server.url, headers={"host": "evil.example"}).status_code == 403
        assert client.get(f"{base}/v1/models").status_code == 404
        with client.stream("GET", f"{base}/console/stream?from=5&hold=1") as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            history = json.loads(next(lines).removeprefix("data: "))
            assert history["columns"] == list(COLUMNS)
            frame = json.loads(next(lines).removeprefix("data: "))
        assert frame["film"] == {"at": 5, "num_frames": len(film.frames)}
        assert frame["source"] == "simulated"
        life = client.get(f"{base}/explain/{run.lives[0].request_id}").json()["life"]
        assert life["status"] in ("stop", "length")
        assert client.get(f"{base}/explain/nobody").status_code == 404
