"""The plan of a measurement: its steps, their order, and the sizes of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isqrt

from headway.blocks import blocks_for
from headway.cluster import WorkerInfo
from headway.cost.buckets import BUCKET_NAMES, NUM_BUCKETS, Buckets
from headway.errors import Code, HeadwayError, invalid

LEAST_CHUNK = 16
NUM_HALVINGS = 7
STAGES = ("start", "V_P", "V_N", *(f"V_D {name}" for name in BUCKET_NAMES), "chunk", "fit")


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Requests of one size: ``num_input`` and ``num_output`` tokens, 2 at least come out."""

    num_input: int
    num_output: int

    @property
    def size(self) -> int:
        """Tokens of a request that is complete."""
        return self.num_input + self.num_output

    def aged(self, place: int) -> RequestSize:
        """Return the same request after some of its life, another share of it for each ``place``.

        Places divide a life evenly however many there are (the golden ratio), so that requests
        that begin together are as old as those that have come one by one.
        """
        share = (place * 0.6180339887498949) % 1.0
        age = int(share * (self.num_output - 1))
        return RequestSize(self.num_input + age, self.num_output - age)

    def released(self, tokens_per_s: float) -> float:
        """Input and output tokens of *completed* requests/s while so many are generated.

        A decoder generates all but a request's first token.
        """
        return tokens_per_s * self.size / (self.num_output - 1)


def buckets_within(buckets: Buckets, max_model_len: int) -> Buckets:
    """Return the sizes that fit a model: a long input is cut to leave room for a long output.

    A medium one that is then not shorter lies halfway between the others on a logarithmic scale.
    HeadwayError where nothing is left to cut.
    """
    short, medium, long = buckets.input_tokens
    if buckets.output_tokens[0] < 2:
        raise invalid("--output-tokens", tuple(buckets.output_tokens), "2 tokens or more each")
    long = min(long, max_model_len - buckets.output_tokens[-1])
    if medium >= long:
        medium = isqrt(short * max(long, 0))
    if not short < medium < long:
        message = (
            f"the model takes {max_model_len} tokens; inputs of {tuple(buckets.input_tokens)} with "
            f"outputs of {tuple(buckets.output_tokens)} cannot be made to fit: give shorter ones "
            "with --input-tokens S,M,L and --output-tokens S,M,L"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    return Buckets((short, medium, long), buckets.output_tokens)


def kinds(buckets: Buckets) -> tuple[RequestSize, ...]:
    """Return a request for each of the nine buckets."""
    return tuple(RequestSize(*buckets.lengths(index)) for index in range(NUM_BUCKETS))


def most_at_a_time(info: WorkerInfo, kind: RequestSize) -> int:
    """Return how many requests a DP unit holds whole; HeadwayError where it is none."""
    most = info.num_blocks // blocks_for(kind.size, info.block_size)
    if most < 1:
        capacity = info.num_blocks * info.block_size
        message = (
            f"the worker holds {capacity} tokens of KV; a request of {kind.num_input} + "
            f"{kind.num_output} does not fit: raise --kv-cache-gib, or give shorter --input-tokens"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    return most


def decode_batch(info: WorkerInfo, kind: RequestSize, longest_prompt: int) -> int:
    """Return how many requests decode beside a convertible decoder's prompt and leave it room."""
    room = info.num_blocks - 2 * blocks_for(longest_prompt, info.block_size)
    return max(1, room // blocks_for(kind.size, info.block_size))


def knee(outputs: Mapping[int, float], tolerance: float) -> int:
    """Return the fewest at a time whose output is the greatest, but for a share of it."""
    enough = (1 - tolerance) * max(outputs.values())
    return min(number for number, output in outputs.items() if output >= enough)


class ChunkSearch:
    """The longest prompt whose pass meets an SLO (s), by halving; ``chunk`` None: none does.

    ``offered`` is to be measured next, None once it is found: first the longest, then the
    shortest. A pass is taken to be the longer the more there is in it.
    """

    def __init__(self, most: int, tpot_slo: float) -> None:
        self.chunk: int | None = None
        self.offered: int | None = most
        self._slo = tpot_slo
        self._too_long = most + 1
        self._num_left = NUM_HALVINGS

    def add(self, seconds: float) -> None:
        """Return how long the pass with ``offered`` tokens took."""
        assert self.offered is not None, "nothing more is to be measured"
        if seconds <= self._slo:
            self.chunk = self.offered
        else:
            self._too_long = self.offered
        self.offered = self._next()

    def _next(self) -> int | None:
        if self.chunk is None:
            return LEAST_CHUNK if self._too_long > LEAST_CHUNK else None
        middle = (self.chunk + self._too_long) // 2
        self._num_left -= 1
        return middle if middle > self.chunk and self._num_left >= 0 else None


def of_middle(values: list[float]) -> float:
    """Their median, the lower of two; infinite for none."""
    return sorted(values)[(len(values) - 1) // 2] if values else inf
