"""What a worker holds: the DP units, their sequences, and what is to be told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from headway.blocks import BlockHash, chain_hashes
from headway.cluster import UnitLoad, WorkerInfo
from headway.core.reasoning import Markers
from headway.core.worker.outbox import TokenOutbox
from headway.core.worker.rates import MemoryRates
from headway.core.worker.sequence import SequenceState, Stage
from headway.core.worker.unit import UnitState
from headway.forward_pass import Sampled, Swap
from headway.messages import FinishedRequest, HeldRequest
from headway.policies.estimation import Estimation
from headway.request import FinishReason, Request, StreamKey

HashesOf = Callable[[Request], Sequence[BlockHash]]
Oracle = Callable[[StreamKey], int]
"""How many tokens a request will have generated at its end: the simulator knows."""


class WorkerState:
    """Everything that a worker holds, and what the next report will say of it.

    ``end_of_reasoning``: the token ids that end a request's reasoning, none for a model
    without; ``start_of_reasoning``: those that begin it, where known. ``oracle``: the simulator's.
    ``estimation``: of remaining lengths; without one a request's own prediction counts down.
    ``host_tokens``: of KV in host memory, per unit.
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
        start_of_reasoning: Sequence[int] = (),
        estimation: Estimation | None = None,
        host_tokens: int = 0,
        caches_prefixes: bool = False,
        swaps_beside: bool = False,
        hashes_of: HashesOf | None = None,
    ) -> None:
        self.info = info
        self._caches_prefixes = caches_prefixes
        self._hashes_of = hashes_of
        self._estimation = estimation
        self.eos_token_ids = frozenset(eos_token_ids)
        self._reasoning = Markers(tuple(end_of_reasoning), tuple(start_of_reasoning))
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
                swaps_beside=swaps_beside,
                rates=self.rates,
            )
            for unit in range(info.num_units)
        ]
        self.outbox = TokenOutbox(info.worker_id)
        self.prefilled: list[HeldRequest] = []
        self.finished: list[FinishedRequest] = []
        self.fencing_token = 0  # of the newest leader that this worker has greeted
        self.listed_as_arriving: set[StreamKey] = set()  # by the last snapshot
        self.answering: dict[StreamKey, None] = {}  # since the last report
        self.lets_go = False  # the scheduler is told who can move
        self.has_freed_blocks = False  # by a transfer: no pass and no end would tell it

    @property
    def loads(self) -> tuple[UnitLoad, ...]:
        """Every unit's load now."""
        return tuple(unit.load() for unit in self.units)

    @property
    def has_prompts_alone(self) -> bool:
        """Whether prompts are left over, and nothing decodes that would have to wait."""
        loads = self.loads
        return any(x.queued_prefill_tokens for x in loads) and not any(x.num_running for x in loads)

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
        sequence.hands_off = not self.info.role.decodes
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
        if not request.reasons:
            return 0
        return self._reasoning.answer_start(request.prompt_token_ids, output)

    def drew(
        self, sequence: SequenceState, sampled: Sampled, *, now: float, step: float, pace: float
    ) -> None:
        """Add what a pass drew; its last token may end the reasoning, and no earlier one."""
        sequence.drew(sampled, now=now, step=step, pace=pace)
        if sequence.answer_start is None:
            self._look_for_answer(sequence, 1 + len(sampled.before))
        estimation, num_since = self._estimation, len(sequence.output) - sequence.estimated_at
        if estimation is not None and num_since >= estimation.interval:
            self._estimate(sequence)
            self.units[sequence.unit].changed[sequence.key] = None

    def _look_for_answer(self, sequence: SequenceState, num_drawn: int) -> None:
        """It begins behind the newest token, or with the first if those so far do not think."""
        reasoning, output = self._reasoning, sequence.output
        is_decided = len(output) - num_drawn < reasoning.decided_at <= len(output)
        if reasoning.ends_with_end(output):
            sequence.answer_start = len(output)
        elif is_decided and reasoning.never_thinks(sequence.request.prompt_token_ids, output):
            sequence.answer_start = 0
        else:
            return
        self.answering[sequence.key] = None
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
        if not (sequence.num_passes or is_sent or sequence.stage is Stage.ARRIVING):
            self.end(sequence, FinishReason.CANCELLED)

    def finish(self, sequence: SequenceState, reason: FinishReason) -> None:
        """It draws no more; it is let go of as soon as no pass touches its blocks."""
        if sequence.ended is None:
            sequence.ended = reason
        self.units[sequence.unit].changed[sequence.key] = None
        if not sequence.num_passes:
            self.end(sequence, sequence.ended)

    def end(self, sequence: SequenceState, reason: FinishReason) -> None:
        """Let go of a sequence and report it."""
        self.units[sequence.unit].remove(sequence)
        self._report(sequence.request, sequence.unit, len(sequence.output), reason)

    def fail_here(self, sequence: SequenceState, message: str) -> None:
        """Tell the client why its request ends, and let go of it."""
        # Should the fault lie in what it began with, nobody else shall.
        self.units[sequence.unit].pool.forget(sequence.blocks)
        self.outbox.fail(sequence.request, message)
        self.finish(sequence, FinishReason.ERROR)

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
