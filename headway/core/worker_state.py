"""What a worker holds: sequences, and the DP units whose blocks they use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headway.blocks import BlockPool
from headway.cluster import UnitLoad, WorkerInfo
from headway.core.worker_outbox import TokenOutbox
from headway.messages import FinishedRequest, Handoff, HeldRequest
from headway.request import FinishReason, Request, StreamKey


class Stage(Enum):
    """Where a sequence stands on this worker."""

    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # has blocks, takes part in passes
    HANDOFF = "handoff"  # prefilled, keeps its blocks until another worker has them
    ARRIVING = "arriving"  # its blocks are being filled by another worker


@dataclass(slots=True, eq=False)
class SequenceState:
    """One request on this worker; tokens ``[0, num_computed)`` have their KV in ``blocks``."""

    request: Request
    unit: int
    stage: Stage
    output: list[int]
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_preemptions: int = 0
    in_pass: bool = False
    cancelled: bool = False
    moving: bool = False
    leaving: Handoff | None = None  # where it goes when it is in no pass
    key: StreamKey = field(init=False)
    """The attempt's name across the cluster."""

    def __post_init__(self) -> None:
        self.key = self.request.key

    @property
    def arrival_at(self) -> float:
        """Arrival at the gateway, seconds since the epoch."""
        return self.request.arrival_at

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.request.prompt_token_ids) + len(self.output)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return self.num_tokens - self.num_computed

    @property
    def decoding(self) -> bool:
        """Whether one more token in gives one more token out."""
        return self.num_computed > 0 and self.num_remaining == 1

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Token ids at positions ``start … stop - 1``."""
        prompt = self.request.prompt_token_ids
        if start >= len(prompt):
            return tuple(self.output[start - len(prompt) : stop - len(prompt)])
        if stop <= len(prompt):
            return prompt[start:stop]
        return (*prompt[start:], *self.output[: stop - len(prompt)])

    def finish_reason(self, eos_token_ids: frozenset[int], max_len: int) -> FinishReason | None:
        """Why the sequence ends with its last token, or None. ``max_len`` in tokens."""
        sampling, token_id = self.request.sampling, self.output[-1]
        if len(self.output) >= sampling.min_tokens:
            if not sampling.ignore_eos and token_id in eos_token_ids:
                return FinishReason.STOP
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP
        if len(self.output) >= sampling.max_tokens or self.num_tokens >= max_len:
            return FinishReason.LENGTH
        return None

    def held(self) -> HeldRequest:
        """As the scheduler is told of it."""
        return HeldRequest(
            key=self.key,
            request_id=self.request.request_id,
            unit=self.unit,
            num_tokens=self.num_tokens,
            awaiting_handoff=self.stage is Stage.HANDOFF and self.leaving is None,
        )


class UnitState:
    """One DP unit: its block pool and its sequences, by key."""

    def __init__(self, unit: int, num_blocks: int, block_size: int) -> None:
        self.unit = unit
        self.pool = BlockPool(num_blocks, block_size, first=unit * num_blocks)
        self.sequences: dict[StreamKey, SequenceState] = {}

    def candidates(self) -> list[SequenceState]:
        """Sequences that a forward pass may serve."""
        return [
            s
            for s in self.sequences.values()
            if s.stage in (Stage.WAITING, Stage.RUNNING) and not s.cancelled
        ]

    def preempt(self, sequence: SequenceState) -> None:
        """Take its blocks back; it computes its tokens again when there is room."""
        self.pool.release(sequence.blocks)
        sequence.stage = Stage.WAITING
        sequence.num_computed = 0
        sequence.num_preemptions += 1

    def remove(self, sequence: SequenceState) -> None:
        """Forget a sequence and free its blocks."""
        self.pool.release(sequence.blocks)
        del self.sequences[sequence.key]

    def load(self) -> UnitLoad:
        """Its load now."""
        queued = running = kv_tokens = 0
        for sequence in self.sequences.values():
            if sequence.stage is Stage.ARRIVING:
                running += 1
                kv_tokens += sequence.num_tokens
                continue
            kv_tokens += sequence.num_computed
            if sequence.stage is Stage.HANDOFF:
                continue
            if sequence.decoding:
                running += 1
            else:
                queued += sequence.num_remaining
        return UnitLoad(self.unit, queued, running, kv_tokens, self.pool.num_free)


class WorkerState:
    """Everything that a worker holds, and what the next report will say of it."""

    def __init__(self, info: WorkerInfo, eos_token_ids: Iterable[int]) -> None:
        self.info = info
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self.units = [
            UnitState(unit, info.num_blocks, info.block_size) for unit in range(info.num_units)
        ]
        self.outbox = TokenOutbox(info.worker_id)
        self.prefilled: list[HeldRequest] = []
        self.finished: list[FinishedRequest] = []
        self.has_freed_blocks = False  # by a transfer: no pass and no end would tell it

    @property
    def loads(self) -> tuple[UnitLoad, ...]:
        """Every unit's load now."""
        return tuple(unit.load() for unit in self.units)

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
        output = list(request.output_token_ids)
        sequence = SequenceState(request, unit, Stage.WAITING, output)
        self.units[unit].sequences[request.key] = sequence

    def cancel(self, key: StreamKey) -> None:
        """Stop a request: at once, or as soon as nothing touches its blocks."""
        sequence = self.find(key)
        if sequence is None:
            return
        sequence.cancelled = True
        if not (sequence.in_pass or sequence.moving or sequence.stage is Stage.ARRIVING):
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
