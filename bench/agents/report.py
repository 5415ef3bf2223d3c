"""A run's figures: what users of the sessions feel, what was cached, and how long tasks took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rich.console import Console

from bench.agents.loop import AgentRun, AskedTurn
from bench.runner.verdict import Figure, spread
from bench.serve.report import record
from results.output import make_table

FIGURES = (
    *(
        Figure(f"{name}_{each}", f"{title}, {said} (s)", 0.0)
        for name, title in (
            ("ttft", "TTFT"),
            ("later_ttft", "TTFT after the first turn"),
            ("ttlt", "a turn"),
            ("tpot", "TPOT"),
            ("task", "a session"),
        )
        for each, said in (("mean", "mean"), ("p50", "P50"), ("p99", "P99"))
    ),
    Figure("cached", "share of prompt tokens cached", 0.005, more_is_better=True),
)
_AROUND_KILL = ("last before", "1st after", "2nd after", "3rd after")


class Cached(NamedTuple):
    """Prompt tokens of some turns: how many, cached ones, and those that an earlier turn had."""

    num_turns: int
    prompt: int
    cached: int
    repeated: int

    @classmethod
    def of(cls, turns: Iterable[AskedTurn]) -> Cached:
        """Count the turns that were answered."""
        sent = [each for each in turns if each.request.times is not None]
        return cls(
            len(sent),
            sum(each.request.prompt_tokens or 0 for each in sent),
            sum(each.request.cached_tokens or 0 for each in sent),
            sum(min(each.num_repeated, each.request.prompt_tokens or 0) for each in sent),
        )

    @property
    def share(self) -> float:
        """The share of the prompt tokens that was cached."""
        return self.cached / max(1, self.prompt)

    @property
    def repeated_share(self) -> float:
        """The share of the prompt tokens that the session's turn before had sent already."""
        return self.repeated / max(1, self.prompt)

    def packed(self) -> dict[str, float]:
        """Return it for JSON."""
        shares = {"cached": self.share, "repeated": self.repeated_share}
        return {"num_turns": self.num_turns, "prompt_tokens": self.prompt, **shares}


def figures_of(run: AgentRun) -> dict[str, float]:
    """Return all figures by name, seconds and shares; without those that nothing tells."""
    answered = [each for each in run.turns if each.request.times is not None]
    times = [(each.place, each.request.times) for each in answered if each.request.times]
    figures = {
        **spread("ttft", (each.ttft for _, each in times)),
        **spread("later_ttft", (each.ttft for place, each in times if place)),
        **spread("ttlt", (each.ttlt for _, each in times)),
        **spread("tpot", (each.tpot for _, each in times if each.tpot is not None)),
    }
    tasks = [each for each in run.lives if each.is_task]
    whole = [each.ended_at - each.begun_at for each in tasks if not each.cut]
    figures |= spread("task", whole)
    if any(each.request.cached_tokens is not None for each in answered):
        figures["cached"] = Cached.of(answered).share
    return figures | {
        "repeated": Cached.of(answered).repeated_share,
        "num_turns": len(answered),
        "num_failed": sum(bool(each.request.error_kind) for each in run.turns),
        "num_sessions": len(run.lives),
        "num_tasks": len(tasks),
        "num_tasks_ended": len(whole),
        "seconds": run.seconds,
    }


def cached_by_turn(turns: Iterable[AskedTurn]) -> dict[int, Cached]:
    """Return what was cached of the sessions' first turns, of their second ones, and so on."""
    by_place: dict[int, list[AskedTurn]] = defaultdict(list)
    for each in turns:
        by_place[each.place].append(each)
    return {place + 1: Cached.of(each) for place, each in sorted(by_place.items())}


def cached_around(turns: Iterable[AskedTurn], at: float) -> dict[str, Cached]:
    """Return what was cached of each session's turns around an instant.

    Of sessions that asked before it and after it: the last turn before, and three after.
    """
    by_session: dict[int, list[AskedTurn]] = defaultdict(list)
    for each in turns:
        by_session[each.session].append(each)
    rows: dict[str, list[AskedTurn]] = {name: [] for name in _AROUND_KILL}
    for asked in by_session.values():
        before = [each for each in asked if each.request.sent_at < at]
        after = [each for each in asked if each.request.sent_at >= at]
        if before and after:
            for name, each in zip(_AROUND_KILL, [before[-1], *after], strict=False):
                rows[name].append(each)
    return {name: Cached.of(each) for name, each in rows.items() if each}


def packed(run: AgentRun, kill_at: float | None) -> dict[str, Any]:
    """Return a run for JSON: what was cached, each session and each turn."""
    around = {} if kill_at is None else cached_around(run.turns, kill_at)
    return {
        "by_turn": {place: each.packed() for place, each in cached_by_turn(run.turns).items()},
        "killed_at": kill_at,
        "around_kill": {name: each.packed() for name, each in around.items()},
        "sessions": [
            {
                "session": each.session,
                "kind": each.kind,
                "begun_at": each.begun_at,
                "ended_at": each.ended_at,
                "cut": each.cut or None,
            }
            for each in run.lives
        ],
        "turns": [
            {
                "session": each.session,
                "turn": each.place + 1,
                "num_repeated_tokens": each.num_repeated,
                **record(each.request),
            }
            for each in run.turns
        ],
    }


# --- for people -----------------------------------------------------------------------


def print_run(
    console: Console, run: AgentRun, figures: Mapping[str, float], kill_at: float | None
) -> None:
    """Print what was cached in one system's run, by turn, and what failed."""
    for line in _facts(run, figures):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _print_cached(console, "turn", cached_by_turn(run.turns))
    if kill_at is not None:
        _print_cached(console, f"killed at {kill_at:.1f} s", cached_around(run.turns, kill_at))


def _facts(run: AgentRun, figures: Mapping[str, float]) -> list[str]:
    cached = figures.get("cached")
    lines = [
        f"{figures['num_turns']:.0f} turns of {figures['num_sessions']:.0f} sessions in "
        f"{run.seconds:.1f} s, {figures['num_failed']:.0f} failed",
        "the endpoint does not say what was cached"
        if cached is None
        else f"{cached:.2f} of the prompt tokens were cached; {figures['repeated']:.2f} of them "
        "had been in the same session's turn before",
    ]
    cuts = Counter(each.cut for each in run.lives if each.cut)
    lines += [f"{number} sessions were cut: {why}" for why, number in sorted(cuts.items())]
    return lines


def _print_cached(console: Console, title: str, rows: Mapping[Any, Cached]) -> None:
    cells = [
        (
            str(name),
            str(each.num_turns),
            f"{each.prompt / max(1, each.num_turns):.0f}",
            f"{each.repeated_share:.2f}",
            f"{each.share:.2f}",
        )
        for name, each in rows.items()
    ]
    console.print(make_table((title, "turns", "mean prompt", "repeated", "cached"), cells))
