"""The measurements, one after another; what an earlier call has measured is not measured again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headway.cost.buckets import BUCKET_NAMES, NUM_BUCKETS, Buckets
from headway.cost.velocity import Saturation
from headway.messages import KvHeader
from planning.profile.decode import Population, generated_per_s, population
from planning.profile.plan import (
    ChunkSearch,
    RequestSize,
    decode_batch,
    kinds,
    knee,
    most_at_a_time,
)
from planning.profile.prefill import (
    MOST_AT_A_TIME,
    lone_velocity,
    moved_per_s,
    prefilled_per_s,
    seconds_with_prompt,
)
from planning.profile.result import Measured
from planning.profile.workers import Bench
from results.kept import Kept

FIRST_AT_A_TIME = 8
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class ProfileSteps:
    """``seconds`` that a figure is measured for; ``say`` hears what was found, ``done`` a stage."""

    bench: Bench
    kept: Kept
    buckets: Buckets
    seconds: float
    tpot_slo: float
    say: Callable[[str], None]
    done: Callable[[], None]

    async def run(self, start_up: float, like: KvHeader) -> Measured:
        """Run every step; ``like`` is the deployment's layout of KV."""
        prefill = await self._prefill()
        self.done()
        network = await self._network()
        self.done()
        decode = []
        for name, kind in zip(BUCKET_NAMES, kinds(self.buckets), strict=True):
            decode.append(await self._decode(name, kind, like))
            self.done()
        batch, chunk = await self._chunk(like)
        self.done()
        return Measured(
            self.buckets, start_up, prefill, network, decode, chunk, batch, self.tpot_slo
        )

    async def _prefill(self) -> float:
        lengths = self.buckets.input_tokens
        longest = lengths[-1]
        alone = await self.kept.value("alone", lambda: lone_velocity(self.bench, longest))
        search = Saturation(alone / 2, factor=1.25, tolerance=TOLERANCE, patience=2)
        while (rate := search.offered) is not None:
            measure = partial(prefilled_per_s, self.bench, lengths, rate, self.seconds)
            velocity = await self.kept.value(f"V_P {rate:.6g}", measure)
            self.say(f"V_P: {rate:,.0f} tokens/s offered, {velocity:,.0f} processed")
            search.add(velocity)
        return search.best

    async def _network(self) -> float:
        length = self.buckets.input_tokens[1]
        search = Saturation(1, factor=2.0, tolerance=TOLERANCE, patience=2)
        while search.offered is not None:
            number = min(int(search.offered), MOST_AT_A_TIME)
            measure = partial(moved_per_s, self.bench, length, number)
            velocity = await self.kept.value(f"V_N {number}", measure)
            self.say(f"V_N: {number} at a time, {velocity:,.0f} tokens/s of KV")
            search.add(velocity)
        return search.best

    async def _decode(self, name: str, kind: RequestSize, like: KvHeader) -> float:
        most = most_at_a_time(self.bench.decoder.info, kind)
        search = Saturation(min(FIRST_AT_A_TIME, most), factor=2.0, tolerance=TOLERANCE, patience=2)
        async with population(self.bench, kind, like) as people:
            while search.offered is not None:
                number = min(int(search.offered), most)
                generated = await self.kept.value(
                    f"V_D {name} {number}", partial(self._generated, people, number)
                )
                velocity = kind.released(generated)
                self.say(f"V_D {name}: {number} at a time, {velocity:,.0f} tokens/s released")
                search.add(velocity)
        return search.best

    async def _generated(self, people: Population, number: int) -> float:
        await people.grow(number)
        return await generated_per_s(self.bench, people, self.seconds)

    async def _chunk(self, like: KvHeader) -> tuple[int, int | None]:
        """Return how many requests decode meanwhile, and the longest prompt that may join them.

        As many as a decoder is saturated with, of the middle bucket; half of them while decoding
        alone is over the SLO.
        """
        info, middle = self.bench.decoder.info, NUM_BUCKETS // 2
        kind = kinds(self.buckets)[middle]
        outputs = self.kept.by_number(f"V_D {BUCKET_NAMES[middle]} ")
        number = min(knee(outputs, TOLERANCE), decode_batch(info, kind, info.max_model_len))
        while (chunk := await self._chunk_beside(kind, number, like)) is None and number > 1:
            number //= 2
        return number, chunk

    async def _chunk_beside(self, kind: RequestSize, number: int, like: KvHeader) -> int | None:
        search = ChunkSearch(self.bench.decoder.info.max_model_len - 2, self.tpot_slo)
        async with population(self.bench, kind, like) as people:
            while (length := search.offered) is not None:
                measure = partial(self._with_prompt, people, number, length)
                pass_time = await self.kept.value(f"chunk {number} {length}", measure)
                self.say(f"chunk: {length} + {number} tokens, {1e3 * pass_time:.1f} ms a pass")
                search.add(pass_time)
        return search.chunk

    async def _with_prompt(self, people: Population, number: int, length: int) -> float:
        await people.grow(number)
        return await seconds_with_prompt(self.bench, length)
