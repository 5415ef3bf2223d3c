"""Replays of the last minutes under other policies, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from headway.cluster import Role
from headway.console import measured
from headway.console.recent import EndedRequest
from headway.cost.schema import Profile
from headway.errors import Code, HeadwayError, invalid
from headway.picture import ClusterPicture
from headway.policies.registry import REGISTRY
from headway.presets import parse_choice
from services.runtime.rooms import child_environment, module_command

_MODULE = "planning.what_if"
_PATIENCE = 120.0
_MOST_REQUESTS = 20_000
_WORKERS = ("prefill", "decode", "unified", "convertible")
_TEXTS = ("profile", "preset", "policy", "settings")
_NAME = re.compile(r"[A-Za-z0-9_-]*")
_MOST_CHARS = 500
_MOST_WORKERS = 64
_BEFORE, _AFTER = 300.0, 60.0  # seconds around a request that a replay of it has
_MOST_BY_CORES = 2000  # requests of a replay that somebody at a terminal waits for
_TTFT = 2.0
"""The promise of requests without a class, where nobody gives another, seconds."""
Json = dict[str, Any]


class OwnWays(NamedTuple):
    """A gateway's own choices, which a replay has where it is given no others."""

    profile: str
    preset: str
    policy: str
    settings: str


class WhatIfDesk:
    """The place where replays are asked for; one runs at a time, and no longer than two minutes."""

    def __init__(
        self,
        recorded: Callable[[], Sequence[EndedRequest]],
        promises: Mapping[str, Mapping[str, float]],
        own: OwnWays,
        draw: Callable[[], Awaitable[ClusterPicture]],
        model: str,
    ) -> None:
        """``draw`` asks the leader for its picture: the workers of a replay that names none.

        Without a profile the costs are those that the model's workers have measured. ``model`` is
        "" where the gateway serves several: then nothing is replayed.
        """
        self._model = model
        self._recorded = recorded
        self._promises = promises
        self._own = own
        self._draw = draw
        self._is_busy = False

    async def ask(self, body: bytes) -> bytes:
        """Return both curves as JSON; HeadwayError for what cannot be replayed.

        A ``request`` by its id narrows the replay to the minutes around it, and the answer has its
        times. Without a preset the gateway's own is taken, without workers those of now. Without
        a request the answer has a control, too: the gateway's own policies, on the workers that
        ``recorded`` names by role, or else on those of the replay.
        """
        if not self._model:
            message = "this gateway serves several models, and a replay knows one"
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        if self._is_busy:
            message = "another replay runs: ask again when it has ended"
            raise HeadwayError(Code.RESOURCE_EXHAUSTED, message, retry_after=5.0)
        self._is_busy = True
        try:
            asked = self._question(_read(body))
            has_workers = any(asked["workers"].values())
            if not has_workers or not asked["profile"]:
                picture = await self._draw()
                if not has_workers:
                    asked["workers"] = _counted(picture)
                if not asked["profile"]:
                    asked["measured"] = measured.packed(_measured(picture, self._model))
            if control := asked.get("control"):
                control["workers"] = control["workers"] or asked["workers"]
            return await _replayed(json.dumps(asked).encode())
        finally:
            self._is_busy = False

    def _question(self, given: Json) -> Json:
        """Return what the simulator is asked, with the recorded requests."""
        finished = [each for each in self._recorded() if each.is_finished]
        request_id = str(given.get("request", ""))[:_MOST_CHARS]
        if request_id:
            finished = _around(finished, request_id)
        finished = sorted(finished[-_MOST_REQUESTS:], key=attrgetter("arrival_at"))
        if not finished:
            message = "no request has ended in the last minutes: there is nothing to replay"
            raise HeadwayError(Code.NOT_FOUND, message)
        texts = {name: str(given.get(name, ""))[:_MOST_CHARS] for name in _TEXTS}
        if not _NAME.fullmatch(texts["profile"]):
            raise invalid("profile", texts["profile"], "the name of a profile, or nothing")
        _refuse_files(texts["policy"], texts["settings"])
        profile = texts["profile"] or self._own.profile
        if not texts["preset"]:
            texts |= self._own._asdict()
        recorded = given.get("recorded")
        control = {
            **self._own._asdict(),
            "profile": profile,
            "workers": _workers(recorded) if isinstance(recorded, dict) else {},
        }
        return {
            **texts,
            "profile": profile,
            "workers": _workers(given),
            "classes": {name: dict(promise) for name, promise in self._promises.items()},
            "ttft": _TTFT,
            "requests": [_row(each, finished[0].arrival_at) for each in finished],
            **(_marked(finished, request_id) if request_id else {"control": control}),
        }


def _workers(given: Json) -> dict[str, int]:
    """Return the numbers of workers by role; HeadwayError for what are no such numbers."""
    workers = {role: given.get(role, 0) for role in _WORKERS}
    if not all(isinstance(number, int) and 0 <= number <= 64 for number in workers.values()):
        raise invalid("workers", workers, "whole numbers from 0 to 64")
    return workers


def _refuse_files(policy: str, settings: str) -> None:
    """Raise HeadwayError for a policy that a client would have us load from a file."""
    for question, name in parse_choice(policy, settings).policies.items():
        known: Collection[str] = REGISTRY.get(question, ())
        if name not in known:
            raise invalid(question, name, f"one of {', '.join(known)}")


def _around(finished: Sequence[EndedRequest], request_id: str) -> list[EndedRequest]:
    """Return the requests of the minutes around one; NOT_FOUND if it is not among them."""
    centre = next((each for each in finished if each.request_id == request_id), None)
    if centre is None:
        message = (
            f"{request_id!r} is not among the whole answers of the last ten minutes, and only "
            "those can be replayed"
        )
        raise HeadwayError(Code.NOT_FOUND, message)
    begin, end = centre.arrival_at - _BEFORE, centre.ended_at + _AFTER
    return [each for each in finished if begin <= each.arrival_at <= end]


def _marked(finished: Sequence[EndedRequest], request_id: str) -> Json:
    """Return the place of the one request that is asked about."""
    places = (n for n, each in enumerate(finished) if each.request_id == request_id)
    return {"marked": next(places), "most_by_cores": _MOST_BY_CORES}


def _row(each: EndedRequest, origin: float) -> tuple[object, ...]:
    return (
        each.arrival_at - origin,
        each.num_prompt_tokens,
        each.num_output_tokens,
        each.num_reasoning_tokens,
        each.service_class,
        each.is_kept,
        each.ttft,
        each.ended_at - each.arrival_at,
    )


def _counted(picture: ClusterPicture) -> dict[str, int]:
    """Return the numbers of workers by role."""
    workers = Counter(worker.role.value for worker in picture.workers)
    return {role: min(workers[role], _MOST_WORKERS) for role in _WORKERS}


def _measured(picture: ClusterPicture, model: str) -> Mapping[Role, Profile]:
    """Return what a model's workers say of their costs."""
    return measured.measured_profiles([w for w in picture.workers if w.model == model])


def _read(body: bytes) -> Json:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise invalid("the body", body[:80].decode("latin-1"), "a JSON object")
    return given


async def _replayed(question: bytes) -> bytes:
    """Run the simulator; it ends with the wait for it."""
    process = await asyncio.create_subprocess_exec(
        *module_command(_MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment(),
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            answer, _ = await process.communicate(question)
    except TimeoutError:
        message = f"the replay took over {_PATIENCE:g} s: choose a preset of the fast fidelity"
        raise HeadwayError(Code.DEADLINE_EXCEEDED, message) from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise HeadwayError(Code.INTERNAL, "the simulator failed on this replay")
    parsed = json.loads(answer)
    if "error" in parsed:
        raise HeadwayError(Code(parsed["code"]), parsed["error"])
    return answer
