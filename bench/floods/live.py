"""The effect of a flood on the first tokens of the others, on a cluster of this machine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cluster.started import keyed_options, started
from bench.floods.offered import (
    FLOODER,
    OTHERS,
    OUTPUT,
    PROMPT,
    TENANT,
    FirstTokens,
    Flood,
    FloodRequest,
    flood_row,
    require_all,
    with_ratios,
)
from bench.serve.client import Client, Endpoint
from bench.serve.plan import PATHS, Plan, Planned
from bench.serve.prompts import TEXT_TOKENS
from bench.serve.replay import Replay, ReplayedRequest
from headway.errors import Code, HeadwayError
from services.gateway.auth import key_line, new_key
from services.local.options import WorkerCounts

PROMPTS = (300, 1000)
"""Tokens of a flood's prompts: as the others', and several times as long."""
_ONE_EACH = WorkerCounts(prefill=1, decode=1)
_PATIENCE = 300.0  # seconds, for one answer
_MOST_OPEN = 4096
_NUM_WARM, _NUM_CROWD = 10, 60

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LiveFlood:
    """What is asked of which cluster; ``seeds``: their requests count together."""

    model: str
    flood: Flood
    preset: str = "headway"
    workers: WorkerCounts = _ONE_EACH
    prompts: Sequence[int] = PROMPTS
    seeds: Sequence[int] = (101, 102, 103)

    async def rows(self, folder: Path, say: Say) -> list[dict[str, float]]:
        """Start the cluster, ask it with and without each flood, and return the figures.

        HeadwayError where the cluster does not start or answers nothing.
        """
        keys = {side: new_key() for side in (*OTHERS, FLOODER)}
        lines = [key_line(side, key, options={"tenant": side}) for side, key in keys.items()]
        lines = lines if self.flood.by == TENANT else []
        options = keyed_options(lines, folder, self.model, self.preset, self.workers)
        async with started(options, folder) as cluster:
            asker = Asker(cluster.url, options.served_name, self.flood, keys)
            await asker.ask([FloodRequest(OTHERS[0], n, 0.3 * n, PROMPT) for n in range(_NUM_WARM)])
            capacity = await asker.capacity()
            say(f"{capacity:.0f} prompt tokens/s at most, in requests of {PROMPT} and {OUTPUT}")
            rows = []
            for prompt in (0, *self.prompts):
                say(f"a flood of prompts of {prompt} tokens" if prompt else "no flood")
                runs = []
                for seed in self.seeds:
                    flood = replace(self.flood, seed=seed)
                    runs.append(await asker.first_tokens(flood, capacity, prompt))
                rows.append(flood_row(prompt, runs))
        return with_ratios(rows)


class Asker:
    """The clients of all sides; each has a key of its own where sides are tenants."""

    def __init__(self, url: str, model: str, flood: Flood, keys: dict[str, str]) -> None:
        has_keys = flood.by == TENANT
        self._ends = {
            side: Endpoint.parse(url, key if has_keys else "") for side, key in keys.items()
        }
        self._model = model
        self._flood = flood
        self._rng = random.Random(0)

    async def capacity(self) -> float:
        """Return the prompt tokens/s at which a crowd is worked off."""
        asked = [FloodRequest(OTHERS[0], number, 0.0, PROMPT) for number in range(_NUM_CROWD)]
        crowd = (await self.ask(asked))[OTHERS[0]]
        ended = [each.times.last_token_at for each in crowd if each.times]
        if not ended:
            raise HeadwayError(Code.UNAVAILABLE, "the cluster answered no request")
        return PROMPT * len(ended) / max(ended)

    async def first_tokens(self, flood: Flood, capacity: float, prompt: int) -> FirstTokens:
        """Ask once, until the others have their answers; what is left of a flood is cut off."""
        outcomes = await self.ask(flood.asked(capacity, prompt))
        others = [each for side in OTHERS for each in outcomes[side]]
        ttfts = [each.times.ttft for each in others if each.times is not None]
        require_all(len(ttfts), len(others))
        times = [each.times for each in outcomes[FLOODER] if each.times is not None]
        num_begun = sum(each.first_token_at <= flood.seconds for each in times)
        return FirstTokens(ttfts, num_begun * (prompt or PROMPT) / flood.seconds)

    async def ask(self, asked: Sequence[FloodRequest]) -> Mapping[str, Sequence[ReplayedRequest]]:
        """Send all, wait for those who do not flood, and return the outcomes by side."""
        replays, clients = dict[str, Replay](), list[Client]()
        for side, end in self._ends.items():
            planned = [self._planned(each) for each in asked if each.side == side]
            clients.append(Client(end, _PATIENCE))
            plan = Plan(PATHS["completions"], planned, ())
            replays[side] = Replay(clients[-1], plan, most_open=_MOST_OPEN)
        stopping = asyncio.Event()
        runs = {side: asyncio.create_task(each.run(stopping)) for side, each in replays.items()}
        try:
            others = [runs[side] for side in OTHERS]
            await asyncio.wait(others, return_when=asyncio.FIRST_EXCEPTION)
        finally:  # nobody asks on behind an error, or when this is called off
            stopping.set()
            await asyncio.wait(runs.values())
            for client in clients:
                client.close()
        for each in runs.values():
            each.result()  # raises what has ended it
        return {side: replay.outcomes for side, replay in replays.items()}

    def _planned(self, asked: FloodRequest) -> Planned:
        body = {
            "model": self._model,
            "prompt": self._rng.choices(TEXT_TOKENS, k=asked.num_prompt_tokens),
            "max_tokens": OUTPUT,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if service_class := self._flood.service_class(asked.side):
            body["headway"] = {"class": service_class}
        sent = json.dumps(body).encode()
        return Planned(asked.number, asked.arrival_at, sent, "", None, reasons=False)
