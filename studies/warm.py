"""A check that a run is long enough: nothing that begins cold is measured as if it were steady.

A cluster that starts empty is steady only after its longest requests have come and gone. So a
run's arrivals last at least ``NUM_RESIDENCES`` times as long as its longest request stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.cluster import Role
from headway.errors import invalid
from headway.sim.cluster import ClusterSpec, SimRequest
from headway.sim.solo import SoloTime

NUM_RESIDENCES = 10.0


@dataclass(frozen=True, slots=True)
class Residence:
    """The seconds that requests stay on a cluster that is half full, without any wait.

    A request is prefilled alone. Then it has a token a pass, beside a batch that takes half of
    what an instance holds: of its KV, and of its places. Waits are left out, because those of an
    overload grow with the run.
    """

    solo: SoloTime
    step: float
    """Seconds of such a pass."""

    @classmethod
    def on(cls, spec: ClusterSpec, requests: Sequence[SimRequest]) -> Residence:
        """Return it for a mix; KV is what requests hold in the mean over all passes."""
        solo = SoloTime.on(spec.instances)
        decodes = any(kind.role is not Role.PREFILL for kind, _ in spec.instances)
        if not (decodes and requests):
            return cls(solo, 0.0)
        num_passes = sum(r.num_output_tokens for r in requests)
        held = sum(
            r.num_output_tokens * (r.num_prompt_tokens + r.num_output_tokens / 2) for r in requests
        )
        kv_tokens = held / num_passes
        profile = solo.decode
        places = min(profile.max_batch, spec.worker.max_running or profile.max_batch)
        batch = max(1.0, min(places, profile.kv_capacity_tokens / kv_tokens) / 2)
        return cls(solo, profile.pass_time.seconds(0, 0, batch, batch * kv_tokens))

    def of(self, request: SimRequest) -> float:
        """Return a request's, seconds."""
        prefill = self.solo.of(request.num_prompt_tokens, 1)
        return prefill + max(0, request.num_output_tokens - 1) * self.step


def require_warm(spec: ClusterSpec, requests: Sequence[SimRequest]) -> None:
    """Refuse a run that is too short for its longest request: HeadwayError."""
    if not requests:
        return
    residence = Residence.on(spec, requests)
    longest = max(requests, key=residence.of)
    seconds = residence.of(longest)
    lasts = requests[-1].arrival_at
    least = NUM_RESIDENCES * seconds
    if lasts >= least:
        return
    more = int(len(requests) * least / lasts) + 1 if lasts else len(requests) + 1
    raise invalid(
        "the arrivals of a run",
        f"{lasts:.0f} s",
        f"{NUM_RESIDENCES:g} times as long as its longest request stays ({least:.0f} s) or longer: "
        f"{longest.request_id} has {longest.num_output_tokens} output tokens and stays "
        f"{seconds:.0f} s; take about {more} requests instead of {len(requests)}, or cut the "
        "longest",
    )
