"""Clients that ask without end, and the history of what they read."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.serve.client import Client, Endpoint
from proof.chaos.answers import AnswerChoice, Refusal, read_answer
from proof.chaos.jobs import ChaosJob
from proof.checker import DIED, Asked, Checker, Ended, Failed, Left, Read, Record

_LEAVES = 0.1  # of all requests: their client hangs up after some of the answer
_PAUSE = 0.2  # seconds after a refusal
_ENOUGH_DEATHS = 2  # workers that a request may have killed before it is refused
Truth = Mapping[int, Sequence[Sequence[int | str]]]
"""Undisturbed answers: by job, each choice's tokens."""


@dataclass(slots=True)
class Open:
    """An answer that is being read: when its last tokens came, and its longest silence (s).

    ``num_losses``: workers lost before it was asked.
    """

    last_at: float
    num_losses: int = 0
    num_reads: int = 0
    longest_pause: float = 0.0

    def read(self, now: float) -> None:
        """Note that tokens have come."""
        if self.num_reads:
            self.longest_pause = max(self.longest_pause, now - self.last_at)
        self.num_reads, self.last_at = self.num_reads + 1, now


@dataclass(slots=True)
class LoadFigures:
    """Counts of a load."""

    by_kind: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Answers that had begun and ended with an error."""
    given_up: list[str] = field(default_factory=list)
    """Requests that ended with an error as promised: the faults had ended their workers."""


class Load:
    """So many clients at a time; ``checker`` takes every record in its order."""

    def __init__(
        self, endpoint: Endpoint, jobs: Sequence[ChaosJob], checker: Checker, *, patience: float
    ) -> None:
        self._client = Client(endpoint, patience)
        self._jobs = jobs
        self._truth: Truth = {}
        self.checker = checker
        self.count_losses: Callable[[], int] = lambda: 0
        """Count the workers that faults have ended or cut off so far."""
        self._patience = patience
        self._stopping = False
        self._number = 0
        self.open: dict[str, Open] = {}
        self.figures = LoadFigures()
        self._records: dict[str, list[Record]] = {}
        self.broken: list[Record] = []
        """Everything about the answers that broke a promise."""

    async def learn(self, at_once: int = 2) -> None:
        """Compute the undisturbed answers; Refusal where one does not come."""
        truth: dict[int, list[list[int | str]]] = {}
        gate = asyncio.Semaphore(at_once)

        async def one(place: int) -> None:
            async with gate:
                choices = await read_answer(self._client, self._jobs[place], lambda *_: None)
            truth[place] = [choice.tokens() for choice in choices]

        await asyncio.gather(*(one(place) for place in range(len(self._jobs))))
        self._truth = truth

    async def run(self, streams: int, seed: int) -> None:
        """Ask until ``stop``; return when every answer has ended."""
        rngs = [random.Random(f"{seed}/{place}") for place in range(streams)]
        await asyncio.gather(*(self._ask_on(rng) for rng in rngs))

    def stop(self) -> None:
        """Ask for nothing new."""
        self._stopping = True

    async def ask_all(self) -> None:
        """Ask for every job once, all of them to their ends."""
        await asyncio.gather(*(self._ask(place, None) for place in range(len(self._jobs))))

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def now(self) -> float:
        """Return the time of the records, s."""
        return asyncio.get_running_loop().time()

    async def _ask_on(self, rng: random.Random) -> None:
        while not self._stopping:
            place = rng.randrange(len(self._jobs))
            leaves_after = rng.randint(1, 60) if rng.random() < _LEAVES else None
            if not await self._ask(place, leaves_after):
                await asyncio.sleep(_PAUSE)

    async def _ask(self, place: int, leaves_after: int | None) -> bool:
        """Ask once; return whether the answer was whole, or the client left."""
        self._number += 1
        job, number, now = self._jobs[place], self._number, self.now()
        self.figures.by_kind[job.kind] += 1
        for choice, expected in enumerate(self._truth[place]):
            name = f"{number}/{choice}"
            self._take(Asked(name, now, expected, now + self._patience))
            self.open[name] = Open(now, self.count_losses())
        try:
            choices = await self._read(job, number, leaves_after if job.streams else None)
        except Refusal as refusal:
            self._refused(job, number, refusal)
            return False
        else:
            self._whole(number, choices or ())
        finally:
            self._forget(number, job)
        return True

    def _whole(self, number: int, choices: Sequence[AnswerChoice]) -> None:
        for index, read in enumerate(choices):
            name = f"{number}/{index}"
            self._take(Read(name, self.now(), [read.last()]))
            self._take(Ended(name, self.now(), read.finish_reason))

    async def _read(
        self, job: ChaosJob, number: int, leaves_after: int | None
    ) -> list[AnswerChoice] | None:
        """Return the choices; None where the client has left."""
        num_read = 0
        enough = asyncio.Event()

        def take(index: int, token_ids: Sequence[int]) -> None:
            nonlocal num_read
            name = f"{number}/{index}"
            self._take(Read(name, self.now(), list(token_ids)))
            self.open[name].read(self.now())
            num_read += len(token_ids)
            if leaves_after is not None and num_read >= leaves_after:
                enough.set()

        reading = asyncio.create_task(read_answer(self._client, job, take))
        leaving = asyncio.create_task(enough.wait())
        try:
            await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            for index in range(job.num_choices):
                self._take(Left(f"{number}/{index}", self.now()))
            return None
        finally:
            leaving.cancel()
            reading.cancel()
            await asyncio.gather(reading, leaving, return_exceptions=True)

    def _refused(self, job: ChaosJob, number: int, refusal: Refusal) -> None:
        self.figures.refusals[refusal.code] += 1
        for index in range(job.num_choices):
            name = f"{number}/{index}"
            num_losses = self.count_losses() - self.open[name].num_losses
            is_excused = DIED in refusal.message and num_losses >= _ENOUGH_DEATHS
            text = f"{name} ({job.kind}): {refusal}"
            if is_excused:
                self.figures.given_up.append(text)
            elif self.open[name].num_reads:
                self.figures.cut.append(text)
            failed = Failed(name, self.now(), refusal.code, refusal.message, is_excused)
            self._take(failed)

    def _forget(self, number: int, job: ChaosJob) -> None:
        for index in range(job.num_choices):
            ended = self.open.pop(f"{number}/{index}")
            self.figures.pauses.append(ended.longest_pause)
            del self._records[f"{number}/{index}"]

    def _take(self, record: Record) -> None:
        self._records.setdefault(record.request_id, []).append(record)
        num_violations = len(self.checker.violations)
        self.checker.take(record)
        if len(self.checker.violations) > num_violations:
            self.broken += self._records[record.request_id]
