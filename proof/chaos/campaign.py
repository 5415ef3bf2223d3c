"""A campaign: learn the undisturbed answers, then load and faults at once, then quiet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.serve.client import Endpoint
from headway.errors import Code, HeadwayError
from proof.chaos.answers import Refusal
from proof.chaos.faults import FAULTS
from proof.chaos.jobs import make_jobs
from proof.chaos.load import Load
from proof.chaos.report import Injected, Report
from proof.chaos.rig import NoTargetError, Rig
from proof.checker import Checker
from services.local.options import ClusterOptions
from services.local.refusals import engines_of

_QUIET = 90.0  # seconds until all must serve again and nothing is held
_LOOK = 0.05
_RECOVERY_LIMIT = 60.0
_HELD: Mapping[str, Sequence[str]] = {
    "gateway": ("headway_gateway_open_requests",),
    "scheduler": ("headway_scheduler_tracked_requests",),
    "worker": ("headway_worker_running_requests", "headway_worker_kv_tokens"),
}
"""Metrics that are 0 while nobody asks for anything."""
_DRAW_ANEW = ("openai",)
"""Engines that go on with other draws where a sampled answer is resumed (docs/engines.md)."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """A campaign's size. Times in seconds."""

    seconds: float
    seed: int
    kinds: Sequence[str]
    rate: float = 0.5
    """Faults per second, on average."""
    most_faults: int = 0
    """0: as many as the time allows."""
    at_once: int = 3
    streams: int = 8
    num_jobs: int = 24
    greedy: bool = False
    """True: no request draws or has penalties, as some engines go on with other draws."""
    patience: float = 120.0
    """The longest that an answer may take."""
    memory_every: float = 10.0


class ChaosCampaign:
    """One campaign; ``report`` holds what it found."""

    def __init__(self, plan: CampaignPlan, model: str, endpoint: Endpoint, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._checker = Checker()
        jobs = make_jobs(model, plan.num_jobs, plan.seed, greedy=plan.greedy)
        self._load = Load(endpoint, jobs, self._checker, patience=plan.patience)
        self._began_at = 0.0
        self._running: set[asyncio.Task[None]] = set()
        self._num_striking = 0
        self.report = Report(plan.seed)

    async def run(self, rig: Rig | None) -> Report:
        """Run it, on a cluster whose processes may be hit, or as load alone."""
        self._say(f"computing {self._plan.num_jobs} undisturbed answers")
        try:
            await self._load.learn()
        except Refusal as refusal:
            message = f"an undisturbed answer failed: {refusal}"
            raise HeadwayError(Code.UNAVAILABLE, message) from None
        if rig is not None:
            self._load.count_losses = lambda: rig.num_losses
        self._began_at = self._load.now()
        self._say(f"{self._plan.streams} clients for {self._plan.seconds:g} s")
        asking = asyncio.create_task(self._load.run(self._plan.streams, self._plan.seed))
        watching = asyncio.create_task(self._watch_memory(rig))
        try:
            await self._disturb(rig)
        finally:
            self._load.stop()
            await asyncio.gather(*self._running, return_exceptions=True)
            await asyncio.gather(asking)
            watching.cancel()
        self.report.seconds = self._since()
        await self._settle(rig)
        self.report.sum_up(self._load, self._checker)
        self._load.close()
        return self.report

    def _since(self) -> float:
        return self._load.now() - self._began_at

    # --- faults -----------------------------------------------------------------------

    async def _disturb(self, rig: Rig | None) -> None:
        plan, rng, number = self._plan, random.Random(self._plan.seed), 0
        if rig is None or not plan.kinds:
            await asyncio.sleep(plan.seconds)
            return
        while True:
            pause = rng.expovariate(plan.rate)
            if self._since() + pause >= plan.seconds or number == (plan.most_faults or -1):
                await asyncio.sleep(max(0.0, plan.seconds - self._since()))
                return
            await asyncio.sleep(pause)
            if self._num_striking >= plan.at_once:
                continue
            number += 1
            kind, own = rng.choice(plan.kinds), random.Random(f"{plan.seed}/{number}")
            task = asyncio.create_task(self._inject(rig, kind, own))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _inject(self, rig: Rig, kind: str, rng: random.Random) -> None:
        began_at = self._since()
        self._num_striking += 1
        try:
            target = await FAULTS[kind](rig, rng)
        except NoTargetError:
            return
        finally:
            self._num_striking -= 1  # others may strike while this one's recovery is measured
        ended_at = self._since()
        recovery = await self._recovered()
        delay = "not within a minute" if recovery is None else f"after {recovery:.2f} s"
        self._say(f"{began_at:7.1f} s  {kind:<14} {target:<40} answers go on {delay}")
        self.report.faults.append(Injected(kind, target, began_at, ended_at, recovery))

    async def _recovered(self) -> float | None:
        """Wait until every answer that was being read has gone on; return the seconds."""
        ended_at = self._load.now()
        waiting = {name: each.num_reads for name, each in self._load.open.items() if each.num_reads}
        while waiting:
            await asyncio.sleep(_LOOK)
            waiting = {
                name: number
                for name, number in waiting.items()
                if name in self._load.open and self._load.open[name].num_reads == number
            }
            if self._load.now() - ended_at > _RECOVERY_LIMIT:
                return None
        return self._load.now() - ended_at

    # --- what is left -----------------------------------------------------------------

    async def _watch_memory(self, rig: Rig | None) -> None:
        while rig is not None:
            self.report.memory.append((self._since(), rig.memory()))
            await asyncio.sleep(self._plan.memory_every)

    async def _settle(self, rig: Rig | None) -> None:
        """Wait for quiet; ask for everything once more, and note what is not as before."""
        left = self.report.left
        if rig is not None:
            left += rig.broken
            left += [f"{name} does not serve" for name in await rig.serving(_QUIET)]
        await self._load.ask_all()
        self._checker.finish(self._load.now())
        if rig is None:
            return
        held = await self._held(rig)
        with suppress(TimeoutError):
            async with asyncio.timeout(_QUIET):
                while held:
                    await asyncio.sleep(0.5)
                    held = await self._held(rig)
        left += held
        self.report.memory.append((self._since(), rig.memory()))
        self.report.tracebacks = rig.tracebacks()

    async def _held(self, rig: Rig) -> list[str]:
        """Return what services still hold though nobody asks for anything."""
        leftovers = []
        for process in rig.processes:
            name = process.spec.service_id
            for metric in _HELD.get(process.spec.service, ()):
                number = await rig.metric(name, metric)
                if number:
                    leftovers.append(f"{name}: {metric} is {number:.0f}")
        return leftovers


async def run_on_cluster(
    plan: CampaignPlan, options: ClusterOptions, log_folder: Path, say: Say
) -> Report:
    """Start a cluster, run the campaign on it, and stop it."""
    certified = "certificates" in plan.kinds
    rig = Rig(options, log_folder, proxied=bool(plan.kinds), certified=certified)
    endpoint = Endpoint.parse(f"http://{options.host}:{options.port}")
    engines = engines_of(options)
    plan = replace(plan, greedy=not engines.isdisjoint(_DRAW_ANEW))
    campaign = ChaosCampaign(plan, options.served_name, endpoint, say)
    tried = [options.policies.preset, *sorted(engines), "mTLS" if certified else "a secret"]
    campaign.report.cluster = ", ".join(tried)
    say(f"starting a cluster: {campaign.report.cluster}; logs in {log_folder}/")
    async with rig:
        return await campaign.run(rig)
