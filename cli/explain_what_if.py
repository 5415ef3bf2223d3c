"""The times that a request would have had under other policies: the minutes around it, replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from headway.console.measured import MEASURED
from headway.cost.profile import profile_names
from headway.errors import Code, HeadwayError, invalid
from headway.life.reasons import several
from headway.life.record import LifeRecord
from headway.presets import PRESETS

USUAL = "vllm-like,headway"
"""The presets that are replayed where nobody names others."""
PATH = "/console/what-if"
_FAR = 1.0  # seconds over its replay, and over twice that, of a request that something else held up


class ReplayedTimes(NamedTuple):
    """A request's times in a replay, in seconds; None for what did not happen."""

    ttft: float | None
    total: float | None
    num_requests: int
    workers: str
    preset: str


Replays = Callable[[LifeRecord, str], ReplayedTimes]
"""Replays a request with a preset, "" for its own; HeadwayError says why that cannot be."""


def parse_presets(text: str) -> Sequence[str]:
    """Return the presets of ``--what-if``; INVALID_ARGUMENT for an unknown one."""
    presets = [name.strip() for name in text.split(",") if name.strip()]
    for name in presets:
        if name not in PRESETS:
            raise invalid("--what-if", name, f"presets by comma: {', '.join(PRESETS)}")
    return presets


def require_profile(name: str) -> None:
    """Raise INVALID_ARGUMENT unless a profile of this name is shipped, or none is named."""
    if name and name not in profile_names():
        raise invalid("--profile", name, f"one of {', '.join(profile_names())}")


def replay_lines(life: LifeRecord, presets: Sequence[str], replay: Replays) -> Iterator[str]:
    """Yield the lines: as recorded, simulated as it ran, and with every preset."""
    yield "what another policy would have done:"
    if life.instants.end is None:
        yield "  it has not ended: ask again when it has"
        return
    yield _line("as recorded", life.ttft, life.total / 1e6)
    try:
        own = replay(life, "")
    except HeadwayError as error:
        yield f"  it cannot be replayed: {error.message}"
        return
    yield _line(f"{own.preset}, as it ran, simulated", own.ttft, own.total)
    if own.total is not None and life.total / 1e6 > own.total + max(_FAR, own.total):
        yield "  (the simulator does not know what held it up: a start, a fault, a slow host)"
    for preset in dict.fromkeys(presets):
        if preset == own.preset:
            continue
        try:
            times = replay(life, preset)
        except HeadwayError as error:
            yield f"  {preset}: it cannot be replayed: {error.message}"
        else:
            yield _line(f"{preset}, simulated", times.ttft, times.total)
    around = several(own.num_requests, "request")
    yield f"  ({around} around it on {own.workers}; compare simulated times)"


def _line(name: str, ttft: float | None, total: float | None) -> str:
    if total is None:
        seen = "it gets no token" if ttft is None else f"TTFT {ttft:.3f} s, and it never ends"
        return f"  {name:<34} {seen}"
    return f"  {name:<34} TTFT {_seconds(ttft)}, whole {_seconds(total)}"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f} s"


def read_times(answer: Any) -> ReplayedTimes:
    """Return what a gateway answered; UNAVAILABLE for what no gateway of this version says."""
    try:
        times = answer["request"]["replayed"]
        workers = ", ".join(f"{number} {role}" for role, number in answer["workers"].items())
        return ReplayedTimes(
            times["ttft"],
            times["total"],
            int(answer["num_requests"]),
            f"{workers}, nothing cached, costs {_source(str(answer['profile']))}",
            str(answer["preset"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        message = f"the gateway's replay cannot be read ({error!r}): it has another version"
        raise HeadwayError(Code.UNAVAILABLE, message) from error


def _source(profile: str) -> str:
    is_measured = profile == MEASURED
    return "as the workers have measured them" if is_measured else f"of the profile {profile}"
