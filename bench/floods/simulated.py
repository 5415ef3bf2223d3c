"""The effect of a flood on the first tokens of the others, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.floods.offered import (
    FLOODER,
    OUTPUT,
    PROMPTS,
    FirstTokens,
    Flood,
    flood_row,
    require_all,
    with_ratios,
)
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.presets import find_preset
from headway.sim.cluster import ClusterSpec, SimCluster, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions, cluster_spec
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec


@dataclass(frozen=True, slots=True)
class FloodedCluster:
    """The simulated cluster."""

    preset: str = "headway"
    profile: str = "llama-8b-a100"
    num_prefill: int = 2
    num_decode: int = 4
    patience: float = 3600.0
    """Seconds within which the others have their answers, or there are no figures."""

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens that it can compute, at best."""
        return self.num_prefill / load_profile(self.profile).pass_time.per_prefill_token

    def spec(self) -> ClusterSpec:
        """Return it in full."""
        profile = load_profile(self.profile)
        instances = (
            (InstanceSpec(Role.PREFILL, profile), self.num_prefill),
            (InstanceSpec(Role.DECODE, profile), self.num_decode),
        )
        network = NetworkParams(bytes_per_s=profile.link_bytes_per_s)
        conditions = Conditions(instances, network, limits=UNLIMITED)
        return cluster_spec(find_preset(self.preset), conditions)


def first_tokens(cluster: FloodedCluster, flood: Flood, flood_prompt: int = 0) -> FirstTokens:
    """Simulate once; ``flood_prompt``: tokens of the flood's prompts, 0 for none.

    HeadwayError if the others do not all have their answers in time.
    """
    kernel, records = Kernel(), list[Record]()
    simulated = SimCluster(kernel, cluster.spec(), records.append)
    asked = flood.asked(cluster.tokens_per_s, flood_prompt)
    simulated.feed(
        SimRequest(
            f"{each.side}-{each.number}",
            each.arrival_at,
            each.num_prompt_tokens,
            OUTPUT,
            standing=flood.standing(each.side),
        )
        for each in asked
    )
    others = sum(each.side != FLOODER for each in asked)
    while kernel.now < cluster.patience:
        kernel.run(kernel.now + 1.0)
        if sum(not _floods(record) for record in records) == others:
            break
    ttfts = [r.ttft for r in records if not _floods(r) and r.finished and r.ttft is not None]
    require_all(len(ttfts), others)
    computed = sum(
        record.num_prompt_tokens
        for record in records
        if _floods(record)
        and record.first_token_at is not None
        and record.first_token_at <= flood.seconds
    )
    return FirstTokens(ttfts, computed / flood.seconds)


def _floods(record: Record) -> bool:
    return record.request_id.split("-")[0] == FLOODER


def rows_of(
    cluster: FloodedCluster,
    flood: Flood,
    prompts: Sequence[int] = PROMPTS,
    seeds: Sequence[int] = (),
) -> list[dict[str, float]]:
    """Return the figures with each kind of flood, and their ratios to those without one.

    ``seeds``: their requests count together; none: the flood's seed.
    """
    floods = [replace(flood, seed=seed) for seed in seeds or (flood.seed,)]
    return with_ratios(
        [
            flood_row(prompt, [first_tokens(cluster, each, prompt) for each in floods])
            for prompt in (0, *prompts)
        ]
    )
