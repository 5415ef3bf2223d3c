"""The effect of a flood on the first tokens of the others, on a cluster of this machine."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.floods.offered import (
    FLOODER,
    OTHERS,
    OUTPUT,
    PROMPT,
    TENANT,
    Flood,
    FloodRequest,
    require_all,
    require_some,
)
from bench.runner.comparison import LiveComparison, Measurement
from bench.runner.offered import replayed
from bench.runner.paired import PairedSamples
from bench.runner.started import LiveTarget, cluster_target, keyed_options
from bench.runner.verdict import Figure, spread
from bench.serve.plan import PATHS, Plan, Planned
from bench.serve.prompts import TEXT_TOKENS
from bench.serve.replay import ReplayedRequest
from headway.errors import Code, HeadwayError
from services.gateway.auth import key_line, new_key
from services.local.options import WorkerCounts

PROMPTS = (300, 1000)
"""Tokens of a flood's prompts: as the others', and several times as long."""
_ONE_EACH = WorkerCounts(prefill=1, decode=1)
_NUM_WARM, _NUM_CROWD = 10, 60


class LiveFlood(LiveComparison):
    """One cluster without a flood, then with each: a flood is what is compared."""

    figures = (
        Figure("ttft_p50", "others: TTFT P50, s", 0.05, sample="ttft", share=0.5),
        Figure("ttft_p99", "others: TTFT P99, s", 0.1, sample="ttft", share=0.99),
        Figure("num_requests", "others: requests", 1.0, more_is_better=True),
        Figure("flooder_tokens_per_s", "flood: prompt tokens/s that are computed", 1.0),
    )
    stay_up = True

    def __init__(
        self,
        model: str,
        flood: Flood,
        folder: Path,
        preset: str = "headway",
        prompts: Sequence[int] = PROMPTS,
    ) -> None:
        super().__init__()
        self._flood = flood
        self._folder = folder
        self._keys = {side: new_key() for side in (*OTHERS, FLOODER)}
        lines = [key_line(side, key, options={"tenant": side}) for side, key in self._keys.items()]
        lines = lines if flood.by == TENANT else []
        self._options = keyed_options(lines, folder, model, preset, _ONE_EACH)
        self._prompts = {f"{prompt} tokens": prompt for prompt in prompts}
        self.systems = ["no flood", *self._prompts]

        self._target: LiveTarget | None = None
        self._capacity = 0.0
        self._rng = random.Random(0)  # no prompt comes twice: its KV would be there

    @asynccontextmanager
    async def serve(self, system: str) -> AsyncIterator[LiveTarget]:
        """Start the one cluster that all floods go to."""
        if self._target is not None:
            yield self._target
            return
        async with cluster_target(self._options, self._folder) as self._target:
            yield self._target

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Measure the prompt tokens/s at which a crowd is worked off, once."""
        if self._capacity:
            return
        side = OTHERS[0]
        await self.ask(
            target.url, [FloodRequest(side, n, 0.3 * n, PROMPT) for n in range(_NUM_WARM)]
        )
        asked = [FloodRequest(side, number, 0.0, PROMPT) for number in range(_NUM_CROWD)]
        crowd = await self.ask(target.url, asked)
        ended = [each.times.last_token_at for each in crowd if each.times]
        if not ended:
            raise HeadwayError(Code.UNAVAILABLE, "the cluster answered no request")
        self._capacity = PROMPT * len(ended) / max(ended)
        said = f"{self._capacity:.0f} prompt tokens/s at most, in requests of {PROMPT} and {OUTPUT}"
        self.console.print(said)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Ask until the others have their answers; what is left of the flood is cut off."""
        flood, prompt = replace(self._flood, seed=seed), self._prompts.get(system, 0)
        outcomes = await self.ask(target.url, flood.asked(self._capacity, prompt))
        others = [each for each in outcomes if each.planned.task in OTHERS]
        ttfts = [each.times.ttft for each in others if each.times is not None]
        require_some(others)
        require_all(len(ttfts), len(others))
        flooders = (each.times for each in outcomes if each.planned.task == FLOODER)
        num_begun = sum(
            each is not None and each.first_token_at <= flood.seconds for each in flooders
        )
        computed = num_begun * (prompt or PROMPT) / flood.seconds
        figures = {"num_requests": len(others), "flooder_tokens_per_s": computed}
        return Measurement({**spread("ttft", ttfts), **figures}, others)

    def samples(self, seed: int, before: Measurement, after: Measurement) -> PairedSamples:
        """Return the others' TTFTs: they ask the same at the same instants, whatever the flood."""
        one, other = (_ttfts(each.requests) for each in (before, after))
        both = [(one[name], other[name]) for name in one if name in other]
        columns = np.array(both, dtype=np.float64).reshape(-1, 2).T
        return {"ttft": (columns[0], columns[1])} if both else {}

    async def ask(self, url: str, asked: Sequence[FloodRequest]) -> list[ReplayedRequest]:
        """Send all, and wait for those who do not flood."""
        plan = Plan(PATHS["completions"], [self.planned(each) for each in asked], ())
        return await replayed(url, plan, until_ended=lambda planned: planned.task in OTHERS)

    def planned(self, asked: FloodRequest) -> Planned:
        """Return a side's request, with its key or its class."""
        body = {
            "model": self._options.served_name,
            "prompt": self._rng.choices(TEXT_TOKENS, k=asked.num_prompt_tokens),
            "max_tokens": OUTPUT,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if service_class := self._flood.service_class(asked.side):
            body["headway"] = {"class": service_class}
        key = {"Authorization": f"Bearer {self._keys[asked.side]}"}
        headers = key if self._flood.by == TENANT else {}
        sent = json.dumps(body).encode()
        return Planned(asked.number, asked.arrival_at, sent, asked.side, None, headers=headers)


def _ttfts(requests: Sequence[ReplayedRequest]) -> Mapping[tuple[str, int], float]:
    return {
        (each.planned.task, each.planned.index): each.times.ttft
        for each in requests
        if each.times is not None
    }
