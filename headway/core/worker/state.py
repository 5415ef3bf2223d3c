"""The state of a worker: DP units, their requests, and news for the next report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.blocks import BlockHash
from headway.cluster import UnitLoad, WorkerInfo
from headway.core.worker.batch import ClockedBatch
from headway.core.worker.costs import CostMeter
from headway.core.worker.events import SendTokens, TellKv
from headway.core.worker.lifecycle import Stage
from headway.core.worker.news import LifeNews
from headway.core.worker.outbox import TokenOutbox
from headway.core.worker.prediction import Oracle, Predictions
from headway.core.worker.rates import MemoryRates
from headway.core.worker.reading import Readers
from headway.core.worker.sequence import Sequence
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.unit import HashesOf, WorkerUnit
from headway.errors import Code
from headway.forward_pass import PLAIN, Sampled, Swap
from headway.messages import FinishedRequest, HeldRequest
from headway.policies.estimation import Estimation
from headway.request import FinishReason, Request, StreamKey


@dataclass(slots=True)
class News:
    """Changes that the scheduler does not know of yet."""

    prefilled: list[HeldRequest] = field(default_factory=list)
    """Requests that can move to another worker."""
    finished: list[FinishedRequest] = field(default_factory=list)
    answering: dict[StreamKey, None] = field(default_factory=dict)
    """Requests whose reasoning has ended."""
    begun: list[StreamKey] = field(default_factory=list)
    """Requests whose prompt is computed, and that decode here; the next report has them."""
    has_freed_blocks: bool = False
    """True if a load has changed that neither a pass nor an end will report."""

    @property
    def is_any(self) -> bool:
        """True if there is something to report."""
        return bool(self.prefilled or self.finished or self.answering or self.has_freed_blocks)

    def clear(self) -> None:
        """Forget the reported news."""
        self.prefilled.clear()
        self.finished.clear()
        self.answering.clear()
        self.begun.clear()
        self.has_freed_blocks = False


class WorkerState:
    """All that a worker holds."""

    def __init__(
        self,
        info: WorkerInfo,
        eos_token_ids: Iterable[int],
        settings: WorkerSettings,
        oracle: Oracle | None = None,
        estimation: Estimation | None = None,
        hashes_of: HashesOf | None = None,
    ) -> None:
        self.info = info
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self.readers = Readers(settings)
        self.predictions = Predictions(info.role, settings.predict_every, oracle, estimation)
        self.rates = MemoryRates(settings.costs)
        can_swap = settings.host_tokens > 0
        self.costs = CostMeter(info, settings.costs, self.rates, can_swap=can_swap)
        self.lives = LifeNews(is_on=settings.tells_lives)
        self.units = [
            WorkerUnit(unit, info, settings, self.rates, hashes_of, self.lives)
            for unit in range(info.num_units)
        ]
        self.outbox = TokenOutbox(info.worker_id)
        self.news = News()
        self.fencing_token = 0
        """The newest leader that this worker has greeted."""
        self.clock: ClockedBatch | None = None
        """The decode batch that goes on from pass to pass; None while every request is planned."""
        self.lets_go = False
        """True if the scheduler needs to know which requests can move."""

    @property
    def num_requests(self) -> tuple[tuple[int, int], ...]:
        """Every unit's requests now: those that hold blocks, and those that wait for some."""
        counts = [(unit.num_running, len(unit.sequences)) for unit in self.units]
        return tuple((running, max(0, held - running)) for running, held in counts)

    @property
    def adapters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The adapters of requests that hold blocks, and of those that wait for some, by name."""
        named = [s for unit in self.units for s in unit.sequences.values() if s.request.adapter]
        running = {s.request.adapter for s in named if s.kv.blocks}
        waiting = {s.request.adapter for s in named if not s.kv.blocks}
        return tuple(sorted(running)), tuple(sorted(waiting))

    def tell_kv(self) -> list[TellKv]:
        """Return what has changed in prefix caches since the last call, where that is told."""
        journals = [unit.journal for unit in self.units if unit.journal is not None]
        return [changes for journal in journals if (changes := journal.take()) is not None]

    def sync(self) -> None:
        """Let every request's own state be as of the end of the last pass."""
        if self.clock is not None:
            self.clock.sync()

    @property
    def loads(self) -> tuple[UnitLoad, ...]:
        """Every unit's load now."""
        return tuple(unit.load() for unit in self.units)

    def take_swaps(self) -> tuple[tuple[Swap, ...], tuple[Swap, ...]]:
        """Return the next pass's swaps: (to host memory, back from it)."""
        if not any(unit.host.has_swaps for unit in self.units):
            return (), ()
        swaps = (
            tuple(swap for unit in self.units for swap in unit.host.swapped_out),
            tuple(swap for unit in self.units for swap in unit.host.swapped_in),
        )
        for unit in self.units:
            unit.host.swapped_out.clear()
            unit.host.swapped_in.clear()
        return swaps

    def take_saves(self) -> tuple[Swap, ...]:
        """Return the next pass's copies of prefixes to host memory."""
        return tuple(swap for unit in self.units for swap in unit.save())

    def note_plan(self) -> None:
        """Note for the scheduler what the plan of a pass took from whom."""
        for unit in self.units:
            self.news.prefilled += [sequence.held() for sequence in unit.unheld]
            self.news.has_freed_blocks |= unit.has_made_room
            unit.unheld.clear()
            unit.has_made_room = False

    def take_ended(self) -> tuple[StreamKey, ...]:
        """Return and clear the requests released since the last pass."""
        ended = tuple([key for unit in self.units for key in unit.released])
        for unit in self.units:
            unit.released.clear()
        return ended

    def find(self, key: StreamKey) -> Sequence | None:
        """Return the request of that name, wherever it is."""
        for unit in self.units:
            sequence = unit.sequences.get(key)
            if sequence is not None:
                return sequence
        return None

    # --- arriving requests ------------------------------------------------------------

    def problem(self, request: Request, unit: int) -> str | None:
        """Return the reason why this worker can never serve the request, or None."""
        if unit >= len(self.units):
            return f"unit is {unit}; this worker's units are 0 to {len(self.units) - 1}"
        if request.model != self.info.model:
            return f"model is {request.model!r}; this worker runs {self.info.model!r}"
        if not self.info.has_adapter(request.adapter):
            known = ", ".join(each.name for each in self.info.adapters) or "none"
            return f"adapter is {request.adapter!r}; this worker's adapters: {known}"
        if request.num_tokens >= self.max_len:
            return (
                f"the request has {request.num_tokens} tokens; this worker's limit is "
                f"{self.max_len} with at least one to generate: shorten the prompt"
            )
        return None

    def queue(self, request: Request, unit: int) -> None:
        """Add a request; ignore one that is here already."""
        if self.find(request.key) is not None:
            return
        problem = self.problem(request, unit)
        if problem is not None:
            self.outbox.fail(request, problem)
            num_output_tokens = len(request.output_token_ids)
            self._report(request, unit, num_output_tokens, FinishReason.ERROR, request.served)
            return
        sequence = self.sequence(request, unit, Stage.WAITING)
        sequence.hands_off = not self.info.role.decodes
        self.units[unit].add(sequence)

    def sequence(
        self, request: Request, unit: int, stage: Stage, num_cached_tokens: int = 0
    ) -> Sequence:
        """Return a new request with what is known of its output."""
        output = list(request.output_token_ids)
        length, reader = self.predictions.of(request), self.readers.of(request, output)
        sequence = Sequence(stage, request, unit, output, length, reader, num_cached_tokens)
        self.predictions.estimate(sequence)
        return sequence

    # --- tokens -----------------------------------------------------------------------

    def drew(self, sequence: Sequence, sampled: Sampled, *, now: float, step: float) -> None:
        """Add a step's token, and those of earlier steps of its pass, ``step`` seconds apart."""
        before = sampled.before
        if not (sequence.hands_off or sequence.num_drawn):
            self.news.begun.append(sequence.key)
        if before:
            sequence.output.extend(before)
            sequence.computed(len(before))
        sequence.output.append(sampled.token_id)
        if self.readers.drew(sequence, sampled, now=now, step=step):
            self.news.answering[sequence.key] = None
            self.units[sequence.unit].changed[sequence.key] = None
        if self.predictions.drew(sequence):
            self.units[sequence.unit].changed[sequence.key] = None

    def send(
        self, sequence: Sequence, sampled: Sampled, ended: FinishReason | None = None
    ) -> FinishReason | None:
        """Send drawn tokens to the client; return why the request ends with them, or None.

        ``ended``: the engine's own word, if it plans its passes.
        """
        reason = ended or sequence.finish_reason(self.eos_token_ids, self.max_len)
        num_cached = min(sequence.kv.num_hit_tokens, sequence.num_prompt_tokens)
        index = len(sequence.output) - 1
        if sequence.num_unsent:
            sampled = sampled._replace(before=(*sampled.before, *[PLAIN] * sequence.num_unsent))
            sequence.num_unsent = 0
        spent = sequence.levels_spent
        self.outbox.add(sequence.request, index, sampled, reason, num_cached, spent)
        return reason

    def send_late(self, sequence: Sequence) -> None:
        """Send the tokens that its client has not been sent."""
        num_unsent, sequence.num_unsent = sequence.num_unsent, 0
        if num_unsent:
            sampled = Sampled(sequence.key, PLAIN, None, (PLAIN,) * (num_unsent - 1))
            index = len(sequence.output) - 1
            self.outbox.add(sequence.request, index, sampled, None, 0, sequence.levels_spent)

    def extend(self, sequence: Sequence, token_ids: Iterable[int]) -> None:
        """Add tokens that another worker has drawn."""
        num_before = len(sequence.output)
        sequence.output.extend(token_ids)
        sequence.attained_tokens += len(sequence.output) - num_before
        self.readers.extended(sequence)

    def sends(self, now: float) -> list[SendTokens]:
        """Return the tokens of the event that has been handled, with the news of requests."""
        if self.lives.marks:
            for mark in self.lives.marks:
                self.outbox.mark(mark.request, mark.at(now))
            self.lives.marks.clear()
        return self.outbox.flush()

    # --- ending requests --------------------------------------------------------------

    def cancel(self, key: StreamKey) -> None:
        """Stop a request: at once, or as soon as nothing uses its blocks."""
        sequence = self.find(key)
        if sequence is not None:
            departure = sequence.departure
            is_sent = departure is not None and departure.num_rounds > 0
            self.finish(sequence, FinishReason.CANCELLED, is_sent=is_sent)

    def cancel_all(self, gateway_id: str) -> None:
        """Stop all requests of a gateway."""
        for key in [key for unit in self.units for key in unit.sequences]:
            if key.gateway_id == gateway_id:
                self.cancel(key)
        self.outbox.forget(gateway_id)

    def finish(self, sequence: Sequence, reason: FinishReason, *, is_sent: bool = False) -> None:
        """End a request; forget it as soon as nothing uses its blocks."""
        unit = self.units[sequence.unit]
        unit.changed[sequence.key] = None
        if sequence.end(reason, is_sent=is_sent):
            self.forget(sequence)
        else:
            unit.recount(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Release a request that has ended, and report it."""
        assert sequence.ended is not None, "it ends before it is forgotten"
        self.units[sequence.unit].remove(sequence)
        request, num_output_tokens = sequence.request, len(sequence.output)
        is_sound = sequence.ended is not FinishReason.ERROR
        names = self.units[sequence.unit].waypoint_names(sequence) if is_sound else ()
        self._report(
            request, sequence.unit, num_output_tokens, sequence.ended, sequence.served, names
        )

    def fail(self, sequence: Sequence, message: str, code: Code = Code.INTERNAL) -> None:
        """End a request at fault in a failed pass, and send its client the reason."""
        # The fault may lie in cached KV that it started with: no other request may use that.
        self.units[sequence.unit].forget(sequence)
        self.outbox.fail(sequence.request, message, code)
        self.finish(sequence, FinishReason.ERROR)

    def _report(
        self,
        request: Request,
        unit: int,
        num_output_tokens: int,
        reason: FinishReason,
        served: float,
        names: tuple[BlockHash, ...] = (),
    ) -> None:
        num_prompt_tokens = len(request.prompt_token_ids)
        self.news.finished.append(
            FinishedRequest(
                request.key, unit, num_prompt_tokens, num_output_tokens, reason, served, names
            )
        )
