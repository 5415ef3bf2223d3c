"""The reasons for which a request went to a unit that holds a part of its prompt, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headway.life.reasons import several


class OwnUnitReasons(NamedTuple):
    """A request's own unit, as a decision recorded it; tokens, seconds.

    ``wait``: until the unit's turn, as expected when the request first could not go there.
    ``longest_wait``: after so long it would have gone anywhere.
    """

    num_hit_tokens: int
    num_host_tokens: int
    num_owed_tokens: int
    cost: float
    wait: float
    longest_wait: float
    runner_up: str
    runner_up_cost: float

    @classmethod
    def read(cls, reason: Mapping[str, Any]) -> OwnUnitReasons:
        """Return what a decision's line says; ValueError and its like for anything else."""
        return cls(
            int(reason["hit_tokens"]),
            int(reason.get("host_tokens", 0)),
            int(reason["owed_tokens"]),
            float(reason["cost"]),
            float(reason["wait"]),
            float(reason.get("longest_wait", 0.0)),
            str(reason.get("runner_up", "")),
            float(reason.get("runner_up_cost", 0.0)),
        )

    def lines(self, unit: str) -> Iterator[str]:
        """Yield sentences for people; ``unit``: its name."""
        held = several(self.num_hit_tokens, "token") + " of the prompt"
        if self.num_host_tokens:
            held += f", {self.num_host_tokens:,} of them in host memory"
        owed = several(self.num_owed_tokens, "prompt token")
        yield f"{unit} held {held}, and owed {owed} to others"
        if self.cost:
            yield self._costs()
        if self.wait:
            yield (
                f"it could not go there at once: the unit's turn was expected in {self.wait:.3f} s,"
                f" and after {self.longest_wait:.3f} s it would have gone anywhere"
            )
        elif self.longest_wait:
            yield f"it went at once; it would have waited for this unit for {self._patience()}"

    def _costs(self) -> str:
        cost = f"cost {self.cost:.4f} s"
        if not self.runner_up:
            return f"{cost}; no other unit could take it"
        return f"{cost}; the runner-up was {self.runner_up} at {self.runner_up_cost:.4f} s"

    def _patience(self) -> str:
        return f"{self.longest_wait:.3f} s at most"
