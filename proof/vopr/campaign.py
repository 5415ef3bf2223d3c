"""Many histories, what they reached together, and which of them broke a promise."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from headway.errors import invalid
from proof.vopr.draw import draw
from proof.vopr.history import History, run
from proof.vopr.scenario import FaultKind, SeedScenario

STANDARD = range(200)
"""The seeds that every test run lives through."""

STATES = (
    "a client leaves",
    "a host has no room for a process",
    "a process dies before it serves",
    "a process dies while it drains",
    "a process is given up",
    "a process is restarted",
    "a spare takes over",
    "a deposed leader's journal is refused",
    "a handoff fails",
    "a leader is elected",
    "a leader steps down",
    "a message is delayed",
    "a pass fails",
    "a pass is planned ahead",
    "a prefix is saved to host memory",
    "a request fails: DEADLINE_EXCEEDED",
    "a request is cancelled while ENDING",
    "a request is cancelled while it moves",
    "a request is handed off",
    "a request is lost with its worker",
    "a request is resubmitted",
    "a request moves while it runs",
    "a sender waits for its reader",
    "a stream is cut",
    "a stream is half open",
    "a takeover with live requests",
    "a takeover with moves in flight",
    "a transfer of KV is interrupted",
    "a worker changes its role with requests",
    "a worker does not take its role",
    "a worker drains with requests",
    "a worker has drained",
    "an answer is lost",
    "an offer is acknowledged without KV",
    "keepalive gives a peer up",
    "KV arrives in host memory",
    "KV comes back from host memory",
    "KV goes to host memory",
    "KV is refused: FAILED_PRECONDITION",
    "KV is refused: RESOURCE_EXHAUSTED",
    "called: Activate",
    "called: ChangeRole",
    "called: Scale",
    "the predictor answers",
    "the store answers too late",
    "the store answers with old data",
    "the store does not answer",
    "the store goes back to an old snapshot",
    "the store is full",
    "tokens come from another worker",
    "two lead for a moment",
    *(f"fault: {kind.name}" for kind in FaultKind),
)
"""Every fault and every interesting state: the standard seeds reach each of them."""


class SeedCampaign:
    """A run of scenarios, one after the other."""

    def __init__(
        self,
        scenarios: Iterable[Callable[[], SeedScenario]],
        num_planned: int,
    ) -> None:
        self._scenarios = scenarios
        self.is_single = num_planned == 1
        self.num_histories = 0
        self.num_requests = self.num_tokens = self.num_passes = 0
        self.virtual_seconds = self.seconds = 0.0
        self.failed: list[History] = []
        self.sometimes: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    @classmethod
    def of_seeds(cls, seeds: range, preset: str = "") -> SeedCampaign:
        """Return the run of these seeds."""

        def scenarios() -> Iterator[Callable[[], SeedScenario]]:
            for seed in seeds:
                yield partial(draw, seed, preset)

        return cls(scenarios(), len(seeds))

    @classmethod
    def of_scenario(cls, scenario: SeedScenario) -> SeedCampaign:
        """Return the run of one scenario."""
        return cls([lambda: scenario], 1)

    def run(self, *, minutes: float = 0.0) -> Iterator[History]:
        """Yield every history as it ends."""
        began_at = time.monotonic()
        for make in self._scenarios:
            history = run(make())
            self._add(history)
            self.seconds = time.monotonic() - began_at
            yield history
            if minutes and self.seconds > 60 * minutes:
                return

    def missing(self) -> list[str]:
        """Return the faults and states that were never reached."""
        return [state for state in STATES if not self.sometimes[state]]

    def _add(self, history: History) -> None:
        self.num_histories += 1
        self.num_requests += history.summary.num_requests
        self.num_tokens += history.summary.num_tokens
        self.num_passes += history.num_passes
        self.virtual_seconds += history.virtual_seconds
        self.sometimes += history.sometimes
        self.ends += history.summary.ends
        if history.violations:
            self.failed.append(history)


def parse_seeds(text: str) -> range:
    """Read ``A..B``; HeadwayError for another form."""
    first, dots, last = text.partition("..")
    if not (dots and first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise invalid("--seeds", text, "A..B with A below B, for example 0..200")
    return range(int(first), int(last))
