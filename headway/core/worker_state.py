"""What a worker holds: the DP units, their sequences, and what is to be told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from headway.blocks import BlockHash, BlockPool, block_hash, chain_hashes
from headway.cluster import UnitLoad, WorkerInfo
from headway.core.worker_host import HostMemory
from headway.core.worker_outbox import TokenOutbox
from headway.core.worker_rates import MemoryRates
from headway.core.worker_sequence import SequenceState, Stage
from headway.messages import FinishedRequest, HeldRequest, Sampled, Swap
from headway.policies.estimation import Estimation
from headway.request import FinishReason, Request, StreamKey

HashesOf = Callable[[Request], Sequence[BlockHash]]
Oracle = Callable[[StreamKey], int]
"""How many tokens a request will have generated at its end: the simulator knows."""


@dataclass(slots=True)
class PrefixCounts:
    """Tokens of requests that were admitted, and how many of them the cache had."""

    num_asked_tokens: int = 0
    num_hit_tokens: int = 0


class UnitState:
    """One DP unit: its block pool and its sequences, by key.

    A preempted sequence's KV waits in ``host`` memory while there is room and ``rates`` say that
    this is sooner, and is computed again otherwise.
    ``changed``: who has come, gone, or changed what a batching policy reads, since a pass was
    planned last; tokens computed by that pass need no mention. ``caches_output``: whether
    generated tokens are cached as the prompt's are.
    """

    def __init__(
        self,
        unit: int,
        num_blocks: int,
        block_size: int,
        host_tokens: int = 0,
        *,
        caches_output: bool = False,
        rates: MemoryRates | None = None,
    ) -> None:
        self.unit = unit
        self.caches_output = caches_output
        self.prefix_counts = PrefixCounts()
        self.pool = BlockPool(num_blocks, block_size, first=unit * num_blocks)
        num_host_blocks = host_tokens // block_size
        self.host = HostMemory(num_host_blocks, block_size, first=unit * num_host_blocks)
        self._rates = rates or MemoryRates()
        self.sequences: dict[StreamKey, SequenceState] = {}
        self.changed: dict[StreamKey, None] = {}

    def candidate(self, key: StreamKey) -> SequenceState | None:
        """The sequence of that name, if a forward pass may serve it."""
        sequence = self.sequences.get(key)
        if sequence is None or sequence.cancelled:
            return None
        return sequence if sequence.stage in (Stage.WAITING, Stage.RUNNING) else None

    def add(self, sequence: SequenceState) -> None:
        """Take a sequence in."""
        self.sequences[sequence.key] = sequence
        self.changed[sequence.key] = None

    def move(self, sequence: SequenceState, stage: Stage) -> None:
        """Let a sequence be at another stage."""
        sequence.stage = stage
        self.changed[sequence.key] = None

    def admit(self, sequence: SequenceState) -> None:
        """Give it blocks for all of its tokens; there is room.

        KV in host memory comes back. Without any it begins with the blocks of its prefix that are
        cached here, but for the last token, which has to be computed.
        """
        was_swapped = sequence.num_computed > 0
        if not was_swapped:
            self._adopt(sequence)
        granted = self.pool.grow(sequence.blocks, sequence.num_tokens)
        assert granted, "room was made for it"
        if was_swapped:
            self.host.swap_in(sequence)
        self.move(sequence, Stage.RUNNING)

    def adoptable(self, sequence: SequenceState) -> Sequence[BlockHash]:
        """Hashes of the blocks that it may begin with: its last token has to be computed."""
        return sequence.hashes[: (sequence.num_tokens - 1) // self.pool.block_size]

    def look_up(self, sequence: SequenceState) -> None:
        """What it would begin with now: not to be told of as work."""
        num_blocks = self.pool.count_cached(self.adoptable(sequence)) if sequence.hashes else 0
        sequence.num_hit_tokens = num_blocks * self.pool.block_size

    def _adopt(self, sequence: SequenceState) -> None:
        if not sequence.hashes and not self.caches_output:
            return
        sequence.num_named = self.pool.adopt(sequence.blocks, self.adoptable(sequence))
        num_hit_tokens = sequence.num_named * self.pool.block_size
        sequence.begin_at(num_hit_tokens)
        if not sequence.num_preemptions:
            sequence.num_hit_tokens = num_hit_tokens
            self.prefix_counts.num_asked_tokens += sequence.num_tokens
            self.prefix_counts.num_hit_tokens += num_hit_tokens

    def cache(self, sequence: SequenceState) -> None:
        """A token was drawn behind its full blocks, which vouches for them: others may use them.

        Its last token has no KV yet, so the block that it fills is named one pass later.
        """
        size = self.pool.block_size
        num_full = sequence.num_computed // size
        if num_full <= sequence.num_named:
            return
        hashes = sequence.hashes
        if self.caches_output:
            for n in range(len(hashes), num_full):
                tokens = sequence.tokens(n * size, (n + 1) * size)
                hashes.append(block_hash(hashes[-1] if hashes else None, tokens))
        self.pool.cache(sequence.blocks, hashes, sequence.num_named, num_full)
        sequence.num_named = num_full

    def preempt(self, sequence: SequenceState, *, voluntary: bool = False) -> None:
        """Take its blocks back; its KV waits in host memory, or is computed again."""
        if not (self._is_swap_sooner(sequence) and self.host.swap_out(sequence)):
            sequence.num_computed = 0
        self.pool.release(sequence.blocks)
        sequence.num_named = 0
        self.move(sequence, Stage.WAITING)
        sequence.num_preemptions += 1
        sequence.num_evictions += voluntary

    def _is_swap_sooner(self, sequence: SequenceState) -> bool:
        if not sequence.num_computed or not self.host.num_free:
            return False
        num_kept = len(sequence.blocks) - self.pool.num_own(sequence.blocks)
        return self._rates.swap_is_sooner(sequence.num_computed, num_kept * self.pool.block_size)

    def lose(self, sequence: SequenceState) -> None:
        """Its KV did not get to host memory: it is computed again."""
        self.host.release(sequence)
        sequence.num_computed = 0
        self.changed[sequence.key] = None

    def remove(self, sequence: SequenceState) -> None:
        """Forget a sequence and free its blocks, and its place in host memory."""
        self.host.release(sequence)
        self.pool.release(sequence.sending)
        self.pool.release(sequence.blocks)
        del self.sequences[sequence.key]
        self.changed[sequence.key] = None

    def load(self) -> UnitLoad:
        """Its load now, without phases."""
        queued = running = kv_tokens = host_tokens = 0
        for sequence in self.sequences.values():
            is_arriving = sequence.stage is Stage.ARRIVING
            if sequence.blocks:
                kv_tokens += sequence.num_tokens if is_arriving else sequence.num_computed
            else:
                host_tokens += sequence.num_computed
            if is_arriving:
                running += 1
                continue
            if sequence.stage is Stage.HANDOFF:
                continue
            if sequence.decoding:
                running += 1
            else:
                queued += sequence.num_queued
        num_free = self.pool.num_free
        return UnitLoad(self.unit, queued, running, kv_tokens, num_free, host_tokens)


class WorkerState:
    """Everything that a worker holds, and what the next report will say of it.

    ``end_of_reasoning``: the token ids that end a request's reasoning, none for a model
    without. ``oracle``: the simulator's. ``estimation``: of remaining lengths; without one a
    request's own prediction counts down. ``host_tokens``: of KV in host memory, per unit.
    ``caches_prefixes``: whether full blocks are kept for others, by a hash of their tokens;
    ``hashes_of`` names those of a prompt where tokens do not say what they are (the simulator).
    """

    def __init__(
        self,
        info: WorkerInfo,
        eos_token_ids: Iterable[int],
        end_of_reasoning: Sequence[int] = (),
        oracle: Oracle | None = None,
        *,
        estimation: Estimation | None = None,
        host_tokens: int = 0,
        caches_prefixes: bool = False,
        hashes_of: HashesOf | None = None,
    ) -> None:
        self.info = info
        self._caches_prefixes = caches_prefixes
        self._hashes_of = hashes_of
        self._estimation = estimation
        self.eos_token_ids = frozenset(eos_token_ids)
        self._end_of_reasoning = list(end_of_reasoning)
        self._oracle = oracle
        self.max_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self.rates = MemoryRates()
        self.units = [
            UnitState(
                unit,
                info.num_blocks,
                info.block_size,
                host_tokens,
                caches_output=caches_prefixes,
                rates=self.rates,
            )
            for unit in range(info.num_units)
        ]
        self.outbox = TokenOutbox(info.worker_id)
        self.prefilled: list[HeldRequest] = []
        self.finished: list[FinishedRequest] = []
        self.answering: dict[StreamKey, None] = {}  # since the last report
        self.has_freed_blocks = False  # by a transfer: no pass and no end would tell it

    @property
    def loads(self) -> tuple[UnitLoad, ...]:
        """Every unit's load now."""
        return tuple(unit.load() for unit in self.units)

    def take_swaps(self) -> tuple[tuple[Swap, ...], tuple[Swap, ...]]:
        """KV that the next pass takes out of its blocks, and that it brings back."""
        swaps = (
            tuple(swap for unit in self.units for swap in unit.host.swapped_out),
            tuple(swap for unit in self.units for swap in unit.host.swapped_in),
        )
        for unit in self.units:
            unit.host.swapped_out.clear()
            unit.host.swapped_in.clear()
        return swaps

    def take_answering(self) -> tuple[HeldRequest, ...]:
        """Requests that run here and whose reasoning has ended since the last report."""
        sequences = [self.find(key) for key in self.answering]
        self.answering.clear()
        return tuple(s.held() for s in sequences if s is not None and not s.cancelled)

    def find(self, key: StreamKey) -> SequenceState | None:
        """The sequence of that name, wherever it is."""
        for unit in self.units:
            sequence = unit.sequences.get(key)
            if sequence is not None:
                return sequence
        return None

    def problem(self, request: Request, unit: int) -> str | None:
        """Why this worker can never serve the request, or None."""
        if unit >= len(self.units):
            return f"unit is {unit}; this worker's units are 0 to {len(self.units) - 1}"
        if request.model != self.info.model:
            return f"model is {request.model!r}; this worker runs {self.info.model!r}"
        if request.num_tokens >= self.max_len:
            return (
                f"the request has {request.num_tokens} tokens; this worker's limit is "
                f"{self.max_len} with at least one to generate: shorten the prompt"
            )
        return None

    def queue(self, request: Request, unit: int) -> None:
        """Take a request in; one that is here already is left alone."""
        if self.find(request.key) is not None:
            return
        problem = self.problem(request, unit)
        if problem is not None:
            self.fail(request, unit, problem)
            return
        sequence = self.sequence(request, unit, Stage.WAITING)
        self.units[unit].add(sequence)
        self.units[unit].look_up(sequence)

    def sequence(
        self, request: Request, unit: int, stage: Stage, num_cached_tokens: int = 0
    ) -> SequenceState:
        """A request's state as it comes here, with what is known of its output."""
        output = list(request.output_token_ids)
        sequence = SequenceState(
            request,
            unit,
            stage,
            output,
            num_cached_tokens=num_cached_tokens,
            answer_start=self._answer_start(request, output),
            predicted_total=request.predicted_output_tokens or None,
            true_total=None if self._oracle is None else self._oracle(request.key),
            hashes=self._hashes(request),
        )
        if request.is_predicted:
            sequence.prediction = max(0.0, request.predicted_output_tokens - len(output))
            sequence.predicted_at = len(output)
        self._estimate(sequence)
        return sequence

    def _hashes(self, request: Request) -> list[BlockHash]:
        if self._hashes_of is not None:
            return list(self._hashes_of(request))
        if self._caches_prefixes:
            token_ids = (*request.prompt_token_ids, *request.output_token_ids)
            return chain_hashes(token_ids, self.info.block_size)
        return []

    def _estimate(self, sequence: SequenceState) -> None:
        """How long it still runs, where that is estimated; its own prediction stands otherwise."""
        if self._estimation is None:
            return
        sequence.estimated_at = len(sequence.output)
        remaining = self._estimation.remaining(sequence)
        if remaining is not None:
            sequence.predicted_total = len(sequence.output) + remaining

    def _answer_start(self, request: Request, output: list[int]) -> int | None:
        marker = self._end_of_reasoning
        if not (marker and request.reasons):
            return 0
        ends = range(len(marker), len(output) + 1)
        return next((end for end in ends if output[end - len(marker) : end] == marker), None)

    def drew(
        self, sequence: SequenceState, sampled: Sampled, *, now: float, step: float, pace: float
    ) -> None:
        """Add what a pass drew; its last token may end the reasoning, and no earlier one."""
        sequence.drew(sampled, now=now, step=step, pace=pace)
        marker = self._end_of_reasoning
        if sequence.answer_start is None and sequence.output[-len(marker) :] == marker:
            sequence.answer_start = len(sequence.output)
            self.answering[sequence.key] = None
            self.units[sequence.unit].changed[sequence.key] = None
        estimation, num_since = self._estimation, len(sequence.output) - sequence.estimated_at
        if estimation is not None and num_since >= estimation.interval:
            self._estimate(sequence)
            self.units[sequence.unit].changed[sequence.key] = None

    def extend(self, sequence: SequenceState, token_ids: Sequence[int]) -> None:
        """Take in what another worker has drawn for it."""
        sequence.output.extend(token_ids)
        sequence.attained_tokens += len(token_ids)
        if sequence.answer_start is None:
            sequence.answer_start = self._answer_start(sequence.request, sequence.output)

    def predict(
        self,
        key: StreamKey,
        num_remaining: float,
        num_output_tokens: int,
        *,
        weight: float = 1.0,
    ) -> None:
        """The predictor, at so many output tokens, expects so many more.

        What is no length is not believed, nor what an answer that came sooner has overtaken.
        ``weight``: against what it said of the request before.
        """
        sequence = self.find(key)
        if sequence is None or not 0 <= num_remaining < inf:
            return
        if sequence.prediction is None or num_output_tokens >= sequence.predicted_at:
            if sequence.prediction is not None:
                before = sequence.predicted_at + sequence.prediction - num_output_tokens
                num_remaining = max(0.0, (1 - weight) * before + weight * num_remaining)
            sequence.predicted_total = num_output_tokens + num_remaining
            sequence.prediction, sequence.predicted_at = num_remaining, num_output_tokens
            self._estimate(sequence)
            self.units[sequence.unit].changed[key] = None

    def cancel(self, key: StreamKey) -> None:
        """Stop a request: at once, or as soon as nothing touches its blocks."""
        sequence = self.find(key)
        if sequence is None:
            return
        sequence.cancelled = True
        self.units[sequence.unit].changed[key] = None
        is_sent = sequence.moving or sequence.num_rounds > 0
        if not (sequence.in_pass or is_sent or sequence.stage is Stage.ARRIVING):
            self.end(sequence, FinishReason.CANCELLED)

    def end(self, sequence: SequenceState, reason: FinishReason) -> None:
        """Let go of a sequence and report it."""
        self.units[sequence.unit].remove(sequence)
        self._report(sequence.request, sequence.unit, len(sequence.output), reason)

    def fail(self, request: Request, unit: int, message: str) -> None:
        """Tell the client why its request ends here, and report it."""
        self.outbox.fail(request, message)
        self._report(request, unit, len(request.output_token_ids), FinishReason.ERROR)

    def _report(
        self, request: Request, unit: int, num_output_tokens: int, reason: FinishReason
    ) -> None:
        num_prompt_tokens = len(request.prompt_token_ids)
        self.finished.append(
            FinishedRequest(request.key, unit, num_prompt_tokens, num_output_tokens, reason)
        )
