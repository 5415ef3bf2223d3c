"""The lives of a gateway's requests: of those that are open, and of the last ones that ended.

Everything here happens once for a request, a message or a move, never once for a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import exp
from operator import attrgetter

from headway.life.moments import Mark, Moment, MomentKind, add_news
from headway.life.parts import parts_of
from headway.life.record import OPEN, CallLives, Crowd, Instants, LifeRecord, TokenTally
from headway.request import Request, call_of, is_named, place_of
from headway.service_class import ServiceClass, Standing

MOST_ENDED = 4096
"""Lives kept of requests that have ended: the newest; each takes a few KiB."""
MOST_MOMENTS = 512
"""Moments kept of one request; further ones are counted."""
_SHORT, _LONG = 1.0, 60.0  # seconds
_LEAST_AGE = 10.0  # seconds that a rate is taken to be old: the first arrivals are no usual rate


class ArrivalRate:
    """Requests per second, over about the last ``span`` seconds."""

    def __init__(self, span: float) -> None:
        self._span = span
        self._began_at: float | None = None
        self._came_at = 0.0
        self._weight = 0.0

    def value(self, now: float) -> float:
        """Return the rate; 0 before the first arrival."""
        if self._began_at is None:
            return 0.0
        faded = self._weight * exp(min(0.0, self._came_at - now) / self._span)
        age = max(now - self._began_at, min(self._span, _LEAST_AGE))
        return faded / self._span / (1.0 - exp(-age / self._span))

    def came(self, now: float) -> None:
        """Count an arrival."""
        if self._began_at is None:
            self._began_at = now
        self._weight = 1.0 + self._weight * exp(min(0.0, self._came_at - now) / self._span)
        self._came_at = now


@dataclass(slots=True)
class _Waiting:
    """Requests without a first token, and the tokens of their prompts."""

    num_requests: int = 0
    num_tokens: int = 0

    def add(self, num_requests: int, num_tokens: int) -> None:
        self.num_requests += num_requests
        self.num_tokens += num_tokens


@dataclass(slots=True, eq=False)
class OpenLife:
    """A life while it is written; instants in seconds by the gateway's clock."""

    request_id: str
    gateway_id: str
    model: str
    arrival_at: float
    standing: Standing
    num_prompt: int
    is_read: bool
    crowd: Crowd
    output: list[int] | None
    """The tokens so far, which others append to; None once the request has ended."""
    waiting: _Waiting
    """All that wait; it counts there until its first token, or its end."""
    session_id: str = ""
    turn: int = 0
    num_output: int = 0
    num_cached: int = 0
    num_reasoning: int = 0
    moments: list[Moment] = field(default_factory=list)
    num_dropped: int = 0
    last_choice: tuple[str, int] = ("", 0)
    first_token_at: float | None = None
    first_answer_at: float | None = None
    ended_at: float | None = None
    status: str = OPEN
    error: str = ""

    @classmethod
    def of(cls, record: LifeRecord) -> OpenLife:
        """Return a life that has ended, as it was written down."""
        at = {
            name: None if us is None else record.arrival_at + us / 1e6
            for name, us in record.instants._asdict().items()
        }
        service = ServiceClass(record.service_class) if record.service_class else None
        return cls(
            record.request_id,
            record.gateway_id,
            record.model,
            record.arrival_at,
            Standing(record.tenant, service=service),
            record.tokens.prompt,
            record.is_read,
            record.crowd,
            None,
            _Waiting(),
            record.session_id,
            record.turn,
            record.tokens.output,
            record.tokens.cached,
            record.tokens.reasoning,
            list(record.moments),
            record.num_dropped,
            first_token_at=at["first_token"],
            first_answer_at=at["first_answer"],
            ended_at=at["end"],
            status=record.status,
            error=record.error,
        )

    def after(self, at: float) -> int:
        """Return an instant in microseconds after the arrival."""
        return max(0, round((at - self.arrival_at) * 1e6))

    def note(
        self, kind: MomentKind, at: float, worker_id: str = "", amount: int = 0, cause: str = ""
    ) -> None:
        """Write down a moment."""
        if kind is MomentKind.SENT:  # another attempt may wait as long for the same worker
            self.last_choice = "", 0
        if len(self.moments) < MOST_MOMENTS:
            self.moments.append(Moment(self.after(at), kind, worker_id, amount, cause))
        else:
            self.num_dropped += 1

    def chosen(self, worker_id: str, waited_us: int, now: float) -> None:
        """Note the scheduler's choice of a worker, once; 0: it does not say how long it took."""
        if waited_us and (worker_id, waited_us) != self.last_choice:
            self.last_choice = worker_id, waited_us
            self.note(MomentKind.CHOSEN, now, worker_id, amount=waited_us)

    def take_news(self, worker_id: str, mark: Mark) -> None:
        """Take a worker's news."""
        if len(self.moments) < MOST_MOMENTS:
            at = self.after(mark.at)
            add_news(self.moments, Moment(at, mark.kind, worker_id, mark.amount, mark.cause))
        else:
            self.num_dropped += 1

    def came_first(self, at: float, worker_id: str) -> None:
        """Note the first token of an attempt."""
        self.note(MomentKind.FIRST_TOKEN, at, worker_id)
        if self.first_token_at is None:
            self.first_token_at = at
            self.waiting.add(-1, -self.num_prompt)

    def end(self, at: float, status: str, error: str = "") -> None:
        """Note the end; a client that has seen it already has seen the right one."""
        if self.ended_at is None:
            self.ended_at = at
            if self.first_token_at is None:
                self.waiting.add(-1, -self.num_prompt)
        if self.status == OPEN:
            self.status, self.error = status, error

    def settle(self, num_output: int) -> None:
        """Let go of the tokens: nothing more will come."""
        self.num_output, self.output = num_output, None

    def record(self, now: float) -> LifeRecord:
        """Return the life as it stands."""
        standing = self.standing
        end = None if self.ended_at is None else self.after(self.ended_at)
        until = self.after(now) if end is None else end
        moments = tuple(sorted(self.moments, key=attrgetter("at")))
        first, answer = self.first_token_at, self.first_answer_at
        return LifeRecord(
            request_id=self.request_id,
            gateway_id=self.gateway_id,
            model=self.model,
            arrival_at=self.arrival_at,
            status=self.status,
            error=self.error,
            tenant=standing.tenant,
            service_class=standing.service.name if standing.service is not None else "",
            is_read=self.is_read,
            tokens=TokenTally(
                self.num_prompt,
                self.num_cached,
                self.num_output if self.output is None else len(self.output),
                self.num_reasoning,
            ),
            crowd=self.crowd,
            instants=Instants(
                None if first is None else self.after(first),
                None if answer is None else self.after(answer),
                end,
            ),
            moments=moments,
            parts=parts_of(moments, until),
            num_dropped=self.num_dropped,
            session_id=self.session_id,
            turn=self.turn,
        )


class Lives:
    """All lives that a gateway knows, by request id; the newest ended ones are kept."""

    def __init__(self, most_ended: int = MOST_ENDED) -> None:
        """``most_ended``: 0 for a gateway that writes no life down."""
        self._most_ended = most_ended
        self._open: dict[str, OpenLife] = {}
        self._ended: dict[str, OpenLife] = {}
        self._waiting = _Waiting()
        self._rate, self._usual = ArrivalRate(_SHORT), ArrivalRate(_LONG)

    def __len__(self) -> int:
        return len(self._open) + len(self._ended)

    def came(
        self, request: Request, output: list[int], turn: int = 0, *, now: float
    ) -> OpenLife | None:
        """Begin a request's life; ``output``: its tokens, to which others append.

        ``turn``: its number in its session, 0 without one.
        """
        if not self._most_ended:
            return None
        self._rate.came(now)
        waiting, num_prompt = self._waiting, len(request.prompt_token_ids)
        rates = self._rate.value(now), self._usual.value(now)
        self._usual.came(now)
        life = self._open[request.request_id] = OpenLife(
            request.request_id,
            request.gateway_id,
            request.adapter or request.model,
            request.arrival_at,
            request.standing,
            num_prompt,
            request.is_read,
            Crowd(waiting.num_requests, waiting.num_tokens, *rates),
            output,
            waiting,
            request.session_id,
            turn,
        )
        waiting.add(1, num_prompt)
        if request.predicted_output_tokens:
            predicted = round(request.predicted_output_tokens)
            life.note(MomentKind.PREDICTED, now, amount=predicted)
        return life

    def ended(self, request_id: str, now: float, status: str, error: str = "") -> None:
        """End a life, unless it has ended."""
        life = self._open.pop(request_id, None)
        if life is None:
            return
        life.end(now, status, error)
        if life.output is not None:
            life.settle(len(life.output))
        self._ended[request_id] = life
        if len(self._ended) > self._most_ended:
            del self._ended[next(iter(self._ended))]

    def paced(self, request_id: str, num_tokens: int, now: float) -> None:
        """Note how many tokens of a request were held for its reader, now that it ends."""
        life = self._open.get(request_id) or self._ended.get(request_id)
        if life is not None and num_tokens:
            life.note(MomentKind.PACED, now, amount=num_tokens)

    def finish(
        self,
        request_id: str,
        status: str,
        now: float,
        *,
        first_answer_at: float | None = None,
        num_reasoning: int = 0,
        num_output: int | None = None,
    ) -> LifeRecord | None:
        """Take what a client saw at the end of its request, and return the life."""
        life = self._open.get(request_id) or self._ended.get(request_id)
        if life is None:
            return None
        life.status = OPEN
        life.end(now, status, life.error)
        if first_answer_at is not None and life.ended_at is not None:
            # The end is noted as it comes, an answer as its text is made: a moment later.
            first_answer_at = min(first_answer_at, life.ended_at)
        life.first_answer_at, life.num_reasoning = first_answer_at, num_reasoning
        if num_output is not None:
            life.settle(num_output)
        return life.record(now)

    def restore(self, records: Iterable[LifeRecord]) -> None:
        """Take lives that ended before this gateway's start, oldest first, as far as they fit."""
        newest = list(records)[-self._most_ended :] if self._most_ended else ()
        self._ended |= {record.request_id: OpenLife.of(record) for record in newest}

    def find(self, request_id: str, now: float) -> LifeRecord | None:
        """Return the life of a request by its own id."""
        life = self._open.get(request_id) or self._ended.get(request_id)
        return None if life is None else life.record(now)

    def call(self, asked: str, now: float) -> CallLives:
        """Return the newest call that an id means: a request's, a call's, or a client's own."""
        life = self.find(asked, now)
        if life is not None:
            return CallLives([life])
        calls: dict[str, list[OpenLife]] = {}
        for each in (*self._ended.values(), *self._open.values()):
            if is_named(each.request_id, asked):
                calls.setdefault(call_of(each.request_id), []).append(each)
        if not calls:
            return CallLives()
        newest = max(calls.values(), key=lambda call: (call[0].arrival_at, call[0].request_id))
        outputs = sorted(newest, key=lambda each: place_of(each.request_id))
        return CallLives([each.record(now) for each in outputs], len(calls) - 1)

    def open(self, now: float) -> Iterator[LifeRecord]:
        """Yield the lives of open requests, oldest first."""
        for life in list(self._open.values()):
            yield life.record(now)

    def since(self, at: float, now: float) -> Iterator[LifeRecord]:
        """Yield lives that ended at or after an instant, in order of their ends, then open ones."""
        for life in list(self._ended.values()):
            if life.ended_at is not None and life.ended_at >= at:
                yield life.record(now)
        yield from self.open(now)
