"""``headway``: critical readers first, then who has no reader; who has waited long joins them.

The order, least first:

0. critical: the first visible token is pending, or the reader has few seconds of tokens left. By
   arrival. Who has no reader joins T seconds after its turn, and ranks by that instant.
1. waiting: who has no reader, by its turn.
2. supplied readers, by the instant at which they run dry: they have tokens to read.
3. who yields by its class and is not due yet, by that instant.

A turn is the arrival. Where a class promises a first token, it is the instant at which that is due.
A prompt that is still computed comes ``prompt_weight`` times its own prefill time later: where
prompts queue, a long one lets those pass that came little later and are done sooner. Where a class
promises its first token, it lets no more pass than leave it time to keep that. A request is
long once it has ``long_tokens`` output tokens that nobody reads yet, and then its turn comes
``long_weight`` times the time later that so many take alone. Who comes later than that does not
pass it.

T is what an overload costs whom (``reader_lag``). With T = ℓ nobody waits longer than under first
come, first served. With a longer T more readers are in time, and who has no reader pays for it.

The long yield their blocks to all others until they join the critical, and those who came last
yield first. So the short start at once, and the long share what is left first come, first served.
The longest is not the first to pay, as it would be by service: it has come early, and it stays in
its place.

With a ``length_weight`` who has no reader comes later by so many times what it still needs alone,
as predicted. Whoever comes later than that does not pass it. Without one nothing is predicted.

A ``reserve`` of blocks is kept free ahead of need, so that who has just been prefilled finds room.
The times of a prompt token and of a pass are the worker's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import ClassVar

from headway.bounds import Bounded, at_least, between
from headway.cost.costs import Constant, Costs, Source
from headway.errors import require_between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.batching.reader_clock import MeanPassTime, ReaderClocks
from headway.policies.batching.reader_lag import ReaderLag
from headway.policies.readers import CostReader
from headway.request import Phase, StreamKey

_CRITICAL, _WAITING, _SUPPLIED, _LEFT = 0.0, 1.0, 2.0, 3.0
UNREAD_WAIT, READER_LAG, READERS_SHARE, WAIT, READER_PACE = "T", "ℓ", "ρ", "W", "τ"
"""Names of constants: seconds, but for ρ."""


@dataclass(frozen=True, slots=True)
class HeadwayParams(Bounded):
    """Parameters of the order."""

    long_tokens: int = between(0, 1 << 20, default=512)
    """Output tokens from which a request is long. The more, the more keep their SLO, and the more
    the longest pay. 0: all who reason come first come, first served."""
    long_weight: float = between(0, 1000, default=0.7)
    """Seconds by which a long request comes later for each second that its first ``long_tokens``
    take alone."""
    length_weight: float = between(0, 1000, default=0.0)
    """Seconds by which who has no reader comes later for each second that its predicted rest takes
    alone. 0: whatever its length. The more, the more keep their SLO in an overload that lasts, and
    the more the longest pay."""
    unread_wait: float | None = at_least(0, default=None)
    """T: seconds after its turn from which who has no reader ranks beside critical readers. inf:
    never, so that readers are in time whoever waits. None: ℓ as measured, so that nobody pays."""
    lag_weight: float = between(0, 1000, default=1.0)
    """T as a multiple of ℓ, where it is measured. With 2 chats begin sooner, and in a burst of
    overload the tails of all others hardly change; their means do."""
    promise: float = between(0, 1e6, default=10.0)
    """Seconds to a first answering token, where no class promises them: T before ℓ is measured."""
    reserve: float = between(0, 0.5, default=0.02)
    """Share of the blocks that is kept free while long requests can yield. Unified instances keep
    none: what yields there counts as room."""
    critical_slack: float = between(0, 60, default=0.7)
    """Seconds of tokens in hand under which a reader is critical."""
    resume_slack: float = 2.0
    """Seconds in hand at which a critical reader is supplied again, ``critical_slack`` to 60."""
    quantum: int = between(1, 1 << 16, default=32)
    """Output tokens after which a supplied reader is looked at again."""
    reader_pace: float = between(0.001, 10, default=0.1)
    """Seconds in which a reader reads one token. Prompts beside readers leave passes so short that
    nobody has to wait for the next one."""
    prompt_weight: float = between(0, 1000, default=3.0)
    """Seconds by which a prompt comes later for each second that it takes. 0: prompts by arrival.
    The more, the more first tokens come in time, and the longer the last ones take."""

    def __post_init__(self) -> None:
        super(HeadwayParams, self).__post_init__()
        require_between("resume_slack", self.resume_slack, self.critical_slack, 60)


_USUAL = HeadwayParams()


class Headway(Batching, CostReader):
    """Critical readers, then who is short, then who is long; the long yield their blocks."""

    preempts = True
    reads_classes: ClassVar[bool] = True
    yields_to_readers: ClassVar[bool] = True

    def __init__(self, params: HeadwayParams | None = None) -> None:
        self._params = params or HeadwayParams()
        self.keeps_pace = self._params.reader_pace
        self.reads_lengths = self._params.length_weight > 0
        self._clocks = ReaderClocks(self._params)
        self._pass_time = MeanPassTime()
        self._lag = ReaderLag(self._params)
        self._per_prompt: Constant | None = None
        self._joined: dict[StreamKey, float] = {}
        """When who has no reader joined the critical: it stays there, whatever T becomes."""
        self._epoch = 0
        self._ranked_at = -inf

    def learn(self, costs: Costs) -> None:
        """Take the time of a prompt token; ranks of prompts change with it."""
        self._lag.learn(costs)
        seconds, name = costs.prefill_per_token, "prefill_per_token"
        per_prompt = Constant("prompt token", seconds, costs.source_of(name)) if seconds else None
        if per_prompt != self._per_prompt:
            self._per_prompt = per_prompt
            self._epoch += 1

    def constants(self) -> Sequence[Constant]:
        """Return a prompt token's time where it is known, T, what T follows from, and τ."""
        params, lag = self._params, self._lag
        constants = [] if self._per_prompt is None else [self._per_prompt]
        if params.unread_wait is not None:
            constants.append(Constant(UNREAD_WAIT, params.unread_wait, Source.GIVEN))
        elif (measured := self._measured_wait) is not None:
            constants.append(Constant(UNREAD_WAIT, measured, Source.MEASURED))
        else:
            constants.append(Constant(UNREAD_WAIT, params.promise, Source.PROMISE))
        if lag.seconds is not None:
            constants.append(Constant(READER_LAG, lag.seconds, Source.MEASURED))
            constants.append(Constant(READERS_SHARE, lag.readers_share, Source.MEASURED))
            constants.append(Constant(WAIT, lag.wait, Source.MEASURED))
        is_usual = params.reader_pace == _USUAL.reader_pace
        source = Source.DEFAULT if is_usual else Source.GIVEN
        return [*constants, Constant(READER_PACE, params.reader_pace, source)]

    @property
    def epoch(self) -> int:
        """See ``Batching.epoch``."""
        return self._epoch

    @property
    def reserve(self) -> float:
        """Share of the blocks to keep free."""
        return self._params.reserve

    def passed(self, pass_time: float, num_tokens: int, num_steps: int = 1) -> None:
        """Measure the pass time: the turns of the long follow from it."""
        self._epoch += self._pass_time.passed(pass_time, num_steps)

    def completed(self, candidate: Candidate, *, now: float) -> None:
        """Measure how far readers lag: T follows from it."""
        is_news = self._lag.ended(candidate, now)
        self._epoch += is_news and self._params.unread_wait is None

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by group, then seconds."""
        self._ranked_at = max(self._ranked_at, now)
        if _takes_what_is_left(candidate, now):
            return Ranked((_LEFT, candidate.due_at), until_at=candidate.due_at)
        if candidate.opens_answer:
            until = candidate.attained_tokens + 1 if candidate.num_output_tokens else inf
            return Ranked((_CRITICAL, self._turn(candidate)), until)
        if _is_read(candidate):
            clock = self._clocks.look(candidate, now)
            if clock.is_critical:
                return Ranked((_CRITICAL, candidate.due_at), clock.until_tokens)
            return Ranked((_SUPPLIED, clock.in_hand_until), clock.until_tokens, clock.until_at)
        until = inf
        if not self._is_long(candidate):
            left = max(1, self._params.long_tokens - candidate.num_output_tokens)
            until = candidate.attained_tokens + left
        if self.reads_lengths:
            until = min(until, candidate.attained_tokens + self._tokens_as_long(candidate))
        joins_at = self._joins_at(candidate)
        if now >= joins_at:
            self._joined[candidate.key] = joins_at
            return Ranked((_CRITICAL, joins_at), until)
        return Ranked((_WAITING, self._turn(candidate)), until, joins_at)

    def _joins_at(self, candidate: Candidate) -> float:
        """Return when a request without a reader joins the critical: T after its turn."""
        joined_at = self._joined.get(candidate.key)
        if joined_at is not None:
            return joined_at
        wait = self._params.unread_wait
        if wait is None:
            wait = self._measured_wait
        if wait is None and isfinite(candidate.answer_due_at):
            wait = max(0.0, candidate.answer_due_at - candidate.due_at)
        return self._turn(candidate) + (self._params.promise if wait is None else wait)

    @property
    def _measured_wait(self) -> float | None:
        lag = self._lag.seconds
        return None if lag is None else self._params.lag_weight * lag

    def _turn(self, candidate: Candidate) -> float:
        """Return the instant by which it is ordered: the long come later, and so do prompts."""
        params = self._params
        turn = candidate.due_at + params.length_weight * self._seconds_left(candidate)
        if self._is_long(candidate):
            alone = params.long_tokens * self._pass_time.seconds
            return turn + params.long_weight * alone
        if candidate.num_output_tokens or self._per_prompt is None:
            return turn
        tokens = candidate.num_prompt_tokens - candidate.num_cached_tokens
        alone = self._per_prompt.value * tokens
        spare = candidate.due_at - candidate.arrival_at - alone
        later = params.prompt_weight * alone
        return turn + (min(later, spare) if spare > 0 else later)

    def _seconds_left(self, candidate: Candidate) -> float:
        """Return what it still needs alone as predicted, by whole quanta.

        0 for whom one reads, and for who has outlived the prediction.
        """
        left = candidate.predicted_remaining
        if not (self.reads_lengths and left) or candidate.opens_answer or _is_read(candidate):
            return 0.0
        since = candidate.num_output_tokens % self._params.quantum
        return (left + since) * self._pass_time.seconds

    def _tokens_as_long(self, candidate: Candidate) -> int:
        """Return the tokens until its quantum ends, or it outlives the prediction."""
        of_quantum, left = self._clocks.tokens_left(candidate), candidate.predicted_remaining
        return ceil(min(left, of_quantum)) if left else of_quantum

    def gives_way(self, candidate: Candidate) -> bool:
        """Return whether it is long and has not joined the critical, or yields by its class."""
        return candidate.yields or self._yields_blocks(candidate, self._ranked_at)

    def is_spared(self, candidate: Candidate) -> bool:
        """Return whether somebody reads it, or waits for its first visible token."""
        return not candidate.yields and (candidate.opens_answer or _is_read(candidate))

    def _yields_blocks(self, candidate: Candidate, now: float) -> bool:
        return self._is_long(candidate) and now < self._joins_at(candidate)

    def _is_long(self, candidate: Candidate) -> bool:
        """Return whether nobody reads the many tokens that it has."""
        has_many = candidate.num_output_tokens >= max(1, self._params.long_tokens)
        return has_many and not _is_read(candidate) and not candidate.opens_answer

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Take blocks from who takes what is left, for all others; from the long, for the short."""
        if _takes_what_is_left(for_, now):
            return False
        if _takes_what_is_left(victim, now):
            return True
        return self._yields_blocks(victim, now) and not self._is_long(for_)

    def takes_back(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Return whether a reader's tokens run out, and nobody reads the victim, which came later.

        First come, first served would have taken the victim's blocks before the reader's.
        """
        if not _is_read(for_) or for_.yields or self.is_spared(victim):
            return False
        return victim.due_at > for_.due_at and self._clocks.look(for_, now).is_critical

    def forget(self, key: StreamKey) -> None:
        """Forget its reader, and that it joined the critical."""
        self._clocks.forget(key)
        self._joined.pop(key, None)


def _is_read(candidate: Candidate) -> bool:
    """Return whether its reader has its answer as it comes."""
    return candidate.phase is Phase.ANSWERING and candidate.is_read


def _takes_what_is_left(candidate: Candidate, now: float) -> bool:
    """Return whether its class yields and it is not due: it starves no longer than until then."""
    return candidate.yields and now < candidate.due_at


ANSWER = Answer("headway", Headway, "Headway: critical readers, the short, the long", HeadwayParams)
