"""Tokens in order, from the workers that the scheduler has named, and from no other.

Early tokens are held back, repeats from another copy are dropped. Two workers may compute one
attempt for a moment, for example when the acknowledgement of a move is lost. Each sends every
token that it draws, so a copy that differs is noticed at its first repeat. The attempt then ends,
and the next one continues from what the client has read.

Tokens and the scheduler's word on who sends them come over different streams. What a worker sends
before it is named waits. A worker that had the request before may only fill a gap in front of
tokens that the present one has sent.
"""

from __future__ import annotations

from headway.core.gateway.events import Delivery, Pause
from headway.core.gateway.state import Held, OpenRequest, StreamStage
from headway.core.gateway.streams import Streams
from headway.life.moments import MomentKind
from headway.messages import StreamFailure, TokenBatch
from headway.request import FinishReason

_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


class Intake:
    """The effect of one batch of tokens, or of the word that names the workers of earlier ones."""

    def __init__(self, streams: Streams, now: float) -> None:
        self.deliveries: list[Delivery] = []
        self.unknown: dict[int, None] = {}  # stream ids of no open request
        self.num_first = 0  # requests that got their first token
        self.broken: dict[str, str] = {}  # request ids whose attempt cannot continue, and why
        self.pauses: list[Pause] = []  # of requests whose tokens now come from another worker
        self.failures: list[StreamFailure] = []  # that their present workers report
        self._streams, self._requests, self._now = streams, streams.requests, now

    def take(self, batch: TokenBatch) -> None:
        """Append a batch's tokens to their requests; end those that have all of them."""
        by_stream, worker_id = self._requests.by_stream, batch.worker_id
        for mark in batch.marks:
            state = by_stream.get(mark.stream_id)
            if state is not None and state.life is not None:
                state.life.take_news(worker_id, mark)
        for entry, (stream_id, index, token_id, reason) in enumerate(
            zip(batch.stream_ids, batch.indices, batch.token_ids, batch.finish_reasons, strict=True)
        ):
            state = by_stream.get(stream_id)
            if state is None:
                self.unknown[stream_id] = None
                continue
            logprobs = batch.logprobs.get(entry) if batch.logprobs else None
            before = batch.before.get(entry, ()) if batch.before else ()
            num_cached = batch.num_cached.get(entry, 0) if batch.num_cached else 0
            spent = batch.levels_spent.get(entry, 0) if batch.levels_spent else 0
            request_id = state.request.request_id
            delivery = Delivery(request_id, token_id, logprobs, reason, before, num_cached, spent)
            if worker_id in state.sources:
                self._take(state, worker_id, index, delivery)
            else:
                self._requests.hold(state, Held(worker_id, index, delivery))
                self._fill_gap(state)
        for failure in batch.failures:
            state = by_stream.get(failure.stream_id)
            if state is not None and worker_id in state.sources:
                self.failures.append(failure)
            elif state is not None and worker_id not in state.former:
                self._requests.hold(state, Held(worker_id, -1, failure))

    def take_held(self, state: OpenRequest) -> None:
        """Take what has waited for its workers to be named."""
        for worker_id, index, said in self._requests.release(state, *state.sources):
            if state.request_id not in self._requests:
                break
            if isinstance(said, StreamFailure):
                self.failures.append(said)
            else:
                self._take(state, worker_id, index, said)

    def _take(self, state: OpenRequest, worker_id: str, index: int, delivery: Delivery) -> None:
        """Take one entry of a source: the next token, an early one, a repeat or an end."""
        num_known, before = len(state.output), delivery.before
        first = index - len(before)
        if first != num_known and before:
            for at, single in enumerate(delivery.singles(), first):
                if state.request_id in self._requests:
                    self._take(state, worker_id, at, single)
            return
        if state.request_id in self.broken:
            return
        if index >= state.request.sampling.max_tokens:
            self.broken[state.request_id] = f"its worker sent token {index}, which it may not have"
        elif (first != num_known or state.early) and _differs(state, first, delivery):
            self.broken[state.request_id] = f"two workers computed token {index} differently"
        elif first != num_known:
            self._out_of_order(state, index, delivery)
        else:
            self._note_source(state, worker_id)
            self._append(state, delivery)
            if state.early:
                self._close_gap(state)
            if state.early or state.stage is not StreamStage.RUNNING:
                self._streams.settle(state, self._now, continues=True)

    def _note_source(self, state: OpenRequest, worker_id: str) -> None:
        now, life = self._now, state.life
        state.worker_id = worker_id
        if state.source_id != worker_id:
            if state.source_id:
                self.pauses.append(state.pause(now))
                if life is not None:
                    life.note(MomentKind.LEFT, state.last_at, state.source_id)
                    life.note(MomentKind.CONTINUES, now, worker_id)
            else:
                if not state.output:
                    state.first_at, state.first_worker_id = now, worker_id
                if life is not None:
                    life.came_first(now, worker_id)
            state.source_id = worker_id
        state.last_at = now

    def _close_gap(self, state: OpenRequest) -> None:
        """Append the early tokens whose turn has come, unless the request has ended."""
        while state.request_id in self._requests and state.request_id not in self.broken:
            early = state.early.pop(len(state.output), None)
            if early is None:
                break
            self._append(state, early)

    def _fill_gap(self, state: OpenRequest) -> None:
        """Append tokens of former workers that come before those of the present one."""
        requests = self._requests
        while state.early and state.request_id in requests and state.request_id not in self.broken:
            missing = requests.fill_in(state, len(state.output))
            if missing is None or missing.before or missing.finish_reason is not None:
                return
            self._append(state, missing)
            self._close_gap(state)
            self._streams.settle(state, self._now)

    def _append(self, state: OpenRequest, delivery: Delivery) -> None:
        reason, token_id = delivery.finish_reason, delivery.token_id
        assert token_id is not None, "only an end alone has no token, and it is not appended"
        if reason is not None and reason not in _ENDS:
            self.broken[state.request_id] = f"its worker ended it: {reason.value}"
            return
        if not state.output:
            self.num_first += 1
            state.num_cached = delivery.num_cached
            if state.life is not None:
                state.life.num_cached = delivery.num_cached
            delivery = delivery._replace(decision=state.decision)
        state.output.extend(delivery.before)
        state.output.append(token_id)
        state.levels_spent = max(state.levels_spent, delivery.levels_spent)
        self.deliveries.append(delivery)
        if reason is not None:
            self._streams.end(state, self._now, reason.value)

    def _out_of_order(self, state: OpenRequest, index: int, token: Delivery) -> None:
        num_known, reason = len(state.output), token.finish_reason
        if index > num_known:  # its predecessor may come over another worker's stream
            state.early[index] = token
            self._streams.settle(state, self._now)
            self._fill_gap(state)
        elif reason is None:
            return  # a repeat
        elif index == num_known - 1 and reason in _ENDS:  # only the end was new
            self.deliveries.append(Delivery(state.request_id, None, None, reason))
            self._streams.end(state, self._now, reason.value)
        else:
            self.broken[state.request_id] = f"a copy of it ended at token {index} of {num_known}"


def _differs(state: OpenRequest, first: int, delivery: Delivery) -> bool:
    """Return whether a token that is already known, delivered or early, has another value."""
    for index, token_id in enumerate((*delivery.before, delivery.token_id), first):
        if index < len(state.output):
            if state.output[index] != token_id:
                return True
        elif index in state.early and state.early[index].token_id != token_id:
            return True
    return False
