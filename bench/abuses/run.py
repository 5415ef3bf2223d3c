"""The runner: one key abuses a cluster of this machine, another asks for a few tokens.

What the other key feels is measured in its own time alone: the same request on the idle cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from bench.abuses.abuser import PATIENCE, Abuser, abuser_at
from bench.abuses.catalogue import COMPLETIONS, Abuse
from bench.runner.started import keyed_options, started
from services.gateway.auth import key_line, new_key
from services.local.options import WorkerCounts

_ABUSER, _OTHER, _OPERATOR = "abuser", "other", "operator"
_QUIET = 1.5
"""Times the time alone: an answer as soon says that nothing is left behind."""
_ONE = WorkerCounts(prefill=0, decode=0, unified=1)

Say = Callable[[str], None]


@dataclass(slots=True)
class AbuseTrial:
    """The outcome of one abuse; seconds are of the other key's requests."""

    name: str
    alone: float
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    """Statuses of the abuser's answers."""
    faults: list[str] = field(default_factory=list)
    """Answers of the other key that are no 200 or hold other tokens, and 5xx for anybody."""

    @property
    def times_alone(self) -> tuple[float, float]:
        """(median, worst) over the time alone."""
        return median(self.seconds) / self.alone, max(self.seconds) / self.alone


@dataclass(frozen=True, slots=True)
class Abused:
    """A cluster to abuse, and the size of each trial."""

    model: str
    preset: str = "headway"
    workers: WorkerCounts = _ONE
    num_asked: int = 5
    """Requests of the other key beside each abuse, one after the other."""
    longest: float = 2.0
    """Seconds after which no further one is asked."""
    head_start: float = 0.3
    """Seconds of abuse before the first."""
    settles: float = 20.0
    """Seconds that what an abuse has left behind may last, before the next begins all the same."""
    least_pass_time: float = 0.0
    """Seconds of every pass at least: an engine of fixed speed, as a GPU beside two busy cores."""

    async def rows(self, abuses: Sequence[Abuse], folder: Path, say: Say) -> list[AbuseTrial]:
        """Start the cluster, commit each abuse, and return the outcomes for the other key.

        HeadwayError where the cluster does not start.
        """
        keys = {name: new_key() for name in (_ABUSER, _OTHER, _OPERATOR)}
        lines = [key_line(name, key, operator=name == _OPERATOR) for name, key in keys.items()]
        flags = ("--least-pass-time", f"{self.least_pass_time:g}") if self.least_pass_time else ()
        options = keyed_options(lines, folder, self.model, self.preset, self.workers, *flags)
        rows = []
        async with (
            started(options, folder) as cluster,
            trials_at(cluster.url, options.served_name, keys, self) as trials,
        ):
            await trials.warm_up()
            for abuse in abuses:
                say(abuse.name)
                rows.append(await trials.measure(abuse))
        return rows


@asynccontextmanager
async def trials_at(
    url: str, model: str, keys: dict[str, str], sizes: Abused
) -> AsyncIterator[Trials]:
    """Start the abuser's process, and open a client of the other key."""
    headers = {"authorization": f"Bearer {keys[_OTHER]}"}
    async with (
        abuser_at(url, model, keys[_ABUSER], keys[_OPERATOR]) as abuser,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client,
    ):
        yield Trials(abuser, client, model, sizes)


class Trials:
    """An abuser and a client of the other key at one gateway."""

    def __init__(
        self, abuser: Abuser, client: httpx.AsyncClient, model: str, sizes: Abused
    ) -> None:
        self._abuser = abuser
        self._client = client
        self._model = model
        self._sizes = sizes
        self._alone: list[float] = []
        self._text = ""

    async def warm_up(self) -> None:
        """Ask alone, for the time and the tokens that the answers are compared with."""
        trial = AbuseTrial("alone", 1.0)
        await self._ask(trial)
        trial.seconds.clear()
        for _ in range(2 * self._sizes.num_asked):
            await self._ask(trial)
        self._alone = trial.seconds

    async def measure(self, abuse: Abuse) -> AbuseTrial:
        """Return what the other key feels of an abuse."""
        trial = AbuseTrial(abuse.name, median(self._alone))
        trial.faults += [f"before it began: {fault}" for fault in await self._settle(trial.alone)]
        await self._abuser.begin(abuse)
        try:
            await asyncio.sleep(self._sizes.head_start)
            until = time.monotonic() + self._sizes.longest
            while len(trial.seconds) < self._sizes.num_asked and (
                not trial.seconds or time.monotonic() < until
            ):
                await self._ask(trial)
        finally:
            ended = await self._abuser.end()
        trial.statuses.update(ended.statuses)
        trial.faults += ended.errors
        trial.faults += [
            f"the abuser was answered {status} {count} times"
            for status, count in trial.statuses.items()
            if status >= 500
        ]
        return trial

    async def _settle(self, alone: float) -> Sequence[str]:
        """Ask until an answer comes as it does alone: the abuse before left work behind.

        Returns what was wrong with the answers.
        """
        until, asked = time.monotonic() + self._sizes.settles, AbuseTrial("settling", alone)
        while time.monotonic() < until:
            await self._ask(asked)
            if asked.seconds[-1] <= _QUIET * alone:
                break
        return asked.faults

    async def _ask(self, trial: AbuseTrial) -> None:
        body = {
            "model": self._model,
            "prompt": "Once upon a time",
            "max_tokens": 4,
            "ignore_eos": True,
            "temperature": 0,
        }
        began_at = time.monotonic()
        try:
            answer = await self._client.post(COMPLETIONS, json=body)
        except httpx.TransportError as error:
            trial.faults.append(f"the other key was not answered: {error!r}")
            return
        finally:
            trial.seconds.append(time.monotonic() - began_at)
        if answer.status_code != 200:
            trial.faults.append(f"the other key was answered {answer.status_code}: {answer.text}")
            return
        text = answer.json()["choices"][0]["text"]
        self._text = self._text or text
        if text != self._text:
            trial.faults.append(f"the other key got {text!r} in place of {self._text!r}")
