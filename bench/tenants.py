"""The effect of one tenant's flood on the first tokens of two others, simulated."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.metrics import percentile
from headway.presets import find_preset
from headway.service_class import Standing
from headway.sim.cluster import ClusterSpec, SimCluster, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions, cluster_spec
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec
from headway.workload.arrivals import gaps

PROMPTS = (300, 1000, 8000)
"""Tokens of a flood's prompts: as the others', several times as long, and several chunks."""
_PROMPT, _OUTPUT = 300, 50
_OTHERS = ("a", "b")
_FLOODER = "c"
_LONGEST = 3600.0


@dataclass(frozen=True, slots=True)
class TenantBench:
    """A cluster and its load; ``load`` and ``flood``: prompt tokens over what it can compute."""

    preset: str = "headway"
    profile: str = "llama-8b-a100"
    num_prefill: int = 2
    num_decode: int = 4
    load: float = 0.6
    flood: float = 10.0
    seconds: float = 10.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Times to first token of the tenants that do not flood, seconds, in order.

    ``flooder_tokens_per_s``: prompt tokens of the third tenant that were computed meanwhile.
    """

    ttfts: Sequence[float]
    flooder_tokens_per_s: float


def first_tokens(bench: TenantBench, flood_prompt: int = 0, *, apart: bool = True) -> FirstTokens:
    """Simulate once; ``flood_prompt``: tokens of the flood's prompts, 0 for none.

    Not ``apart``: all requests belong to nobody, as without keys.
    """
    kernel, records = Kernel(), list[Record]()
    cluster = SimCluster(kernel, _spec(bench), records.append)
    requests = list(_requests(bench, flood_prompt, apart))
    cluster.feed(iter(requests))
    others = sum(_is_other(request.request_id) for request in requests)
    while kernel.now < _LONGEST:
        kernel.run(kernel.now + 1.0)
        if sum(_is_other(record.request_id) for record in records) == others:
            break
    found = sorted(r.ttft for r in records if _is_other(r.request_id) and r.ttft is not None)
    computed = sum(
        record.num_prompt_tokens
        for record in records
        if not _is_other(record.request_id)
        and record.first_token_at is not None
        and record.first_token_at <= bench.seconds
    )
    return FirstTokens(found, computed / bench.seconds)


def _spec(bench: TenantBench) -> ClusterSpec:
    profile = load_profile(bench.profile)
    instances = (
        (InstanceSpec(Role.PREFILL, profile), bench.num_prefill),
        (InstanceSpec(Role.DECODE, profile), bench.num_decode),
    )
    network = NetworkParams(bytes_per_s=profile.link_bytes_per_s)
    return cluster_spec(find_preset(bench.preset), Conditions(instances, network, limits=UNLIMITED))


def _requests(bench: TenantBench, flood_prompt: int, apart: bool) -> Iterator[SimRequest]:
    """Yield requests of three tenants alike by arrival; one of them may flood instead."""
    profile = load_profile(bench.profile)
    capacity = bench.num_prefill / profile.pass_time.per_prefill_token  # tokens/s, at best
    usual = bench.load * capacity / (len(_OTHERS) + 1)
    streams = [_stream(bench, name, usual, _PROMPT, apart) for name in _OTHERS]
    if flood_prompt:
        flood = bench.flood * capacity
        streams.append(_stream(bench, _FLOODER, flood, flood_prompt, apart))
    else:
        streams.append(_stream(bench, _FLOODER, usual, _PROMPT, apart))
    yield from heapq.merge(*streams, key=lambda request: request.arrival_at)


def _stream(
    bench: TenantBench, name: str, tokens_per_s: float, prompt: int, apart: bool
) -> Iterator[SimRequest]:
    rng = random.Random(f"{bench.seed}/{name}")
    standing, at = Standing(name if apart else ""), 0.0
    for number, gap in enumerate(gaps("poisson", tokens_per_s / prompt, rng)):
        at += gap
        if at > bench.seconds:
            return
        yield SimRequest(f"{name}-{number}", at, prompt, _OUTPUT, standing=standing)


def _is_other(request_id: str) -> bool:
    return request_id.split("-")[0] in _OTHERS


def rows_of(
    bench: TenantBench, prompts: Sequence[int] = PROMPTS, seeds: Sequence[int] = ()
) -> list[dict[str, float]]:
    """Return the figures with each kind of flood, and their ratios to those without one.

    ``seeds``: their requests count together; none: the bench's seed.
    """
    benches = [replace(bench, seed=seed) for seed in seeds or (bench.seed,)]
    quiet = _row(0, [first_tokens(each) for each in benches])
    rows = [quiet]
    for prompt in prompts:
        rows.append(_row(prompt, [first_tokens(each, prompt) for each in benches]))
    for row in rows:
        row["p50_ratio"] = row["p50_ttft"] / quiet["p50_ttft"]
        row["p99_ratio"] = row["p99_ttft"] / quiet["p99_ttft"]
    return rows


def _row(prompt: int, found: Sequence[FirstTokens]) -> dict[str, float]:
    ttfts = sorted(ttft for each in found for ttft in each.ttfts)
    return {
        "flood_prompt": prompt,
        "num_requests": len(ttfts),
        "p50_ttft": percentile(ttfts, 0.5),
        "p99_ttft": percentile(ttfts, 0.99),
        "flooder_tokens_per_s": sum(each.flooder_tokens_per_s for each in found) / len(found),
    }
