"""Clients on virtual time: what they ask for, and what they have seen of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.core.gateway.events import Deliver, Submit
from headway.policies.pacing import Pacing
from headway.request import Request, SamplingParams, StreamKey
from headway.service_class import NO_STANDING, Standing
from headway.sim.kernel import Kernel
from headway.sim.pass_log import HeardPasses
from headway.sim.predictor import LearnedLengths
from headway.sim.prompts import prompt_tokens
from headway.sim.records import Record, Segment
from headway.sim.worker import MODEL

_LONGEST_STREAM = 60.0  # seconds that a copy may outlive its request


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A client's request and the model's answer to it; seconds, tokens.

    ``num_reasoning_tokens`` counts up to and with the end of reasoning, 0 for none.
    ``prefix_hashes``: of blocks of 512 tokens from the prompt's beginning, and on into the output
    where a later turn repeats it; equal ones hold the same tokens. ``is_read``: whether its client
    reads the answer as it comes. ``standing``: whom it counts for, and its class. ``session_id``
    and ``ends_session``: as in ``Request``.
    """

    request_id: str
    arrival_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_reasoning_tokens: int = 0
    prefix_hashes: tuple[int, ...] = ()
    is_read: bool = True
    standing: Standing = NO_STANDING
    session_id: str = ""
    ends_session: bool = False

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that its reader is shown."""
        return self.num_output_tokens - self.num_reasoning_tokens


class Clients:
    """All clients of a cluster; ``ended`` is told of every request that is over.

    ``pacing``: the policy that holds answering tokens of those who read as they come, if any.
    """

    def __init__(
        self, kernel: Kernel, pacing: Pacing | None, ended: Callable[[Record], None]
    ) -> None:
        self._kernel = kernel
        self._pacing = pacing
        self._ended = ended
        self._requests: dict[str, SimRequest] = {}
        self._records: dict[str, Record] = {}
        self._lengths: dict[StreamKey, SimRequest] = {}
        self._streams: deque[tuple[float, StreamKey]] = deque()
        self._num_asked = 0
        self.num_produced = 0
        self._means = LearnedLengths(kernel)
        self.ended_at = 0.0

    @property
    def are_waiting(self) -> bool:
        """True if a request has not ended."""
        return bool(self._requests)

    @property
    def lengths(self) -> Mapping[StreamKey, SimRequest]:
        """The answers of the simulated model, by attempt."""
        return self._lengths

    def ask(self, request: SimRequest) -> Submit:
        """Return what its gateway is asked."""
        self._requests[request.request_id] = request
        self._records[request.request_id] = Record(
            request.request_id,
            request.arrival_at,
            request.num_prompt_tokens,
            request.num_reasoning_tokens,
            request.num_output_tokens,
            is_read=request.is_read,
            pacing=self._pacing if request.is_read else None,
            reader_tpot=service.tpot if (service := request.standing.service) else None,
        )
        sampling = SamplingParams(max_tokens=request.num_output_tokens)
        prompt = prompt_tokens(self._num_asked, request.num_prompt_tokens, request.prefix_hashes)
        self._num_asked += 1
        reasons = request.num_reasoning_tokens > 0
        asked = Request(
            request.request_id,
            MODEL,
            prompt,
            sampling,
            request.arrival_at,
            predicted_output_tokens=self.expected_tokens(request),
            reasons=reasons,
            session_id=request.session_id,
            ends_session=request.ends_session,
            standing=request.standing,
        )
        return Submit(asked, request.is_read)

    def expected_tokens(self, request: SimRequest) -> float:
        """Return the output tokens that its gateway expects; 0 if unknown."""
        return self._means.expected(request.num_prompt_tokens)

    def attempt(self, asked: Request) -> None:
        """Let the model know the answer to an attempt at a request."""
        if asked.key not in self._lengths:
            self._streams.append((self._kernel.now, asked.key))
        self._lengths[asked.key] = self._requests[asked.request_id]

    def deliver(self, action: Deliver, heard: HeardPasses | None) -> None:
        """Note tokens, and requests that end.

        ``heard``: the passes that they come from; None for tokens that have waited at the gateway
        until now.
        """
        for delivery in action.deliveries:
            request_id = delivery.request_id
            if delivery.token_id is not None:
                count = 1 + len(delivery.before)
                late = [Segment(count, self._kernel.now, 0.0, 0.0)]
                self._records[request_id].extend(late if heard is None else heard.last(count))
                self.num_produced += count
            if delivery.finish_reason is not None:
                self.close(request_id)

    def close(self, request_id: str, *, error: str = "") -> None:
        """End a request; ``error`` says why it did not finish."""
        record = self._records.pop(request_id)
        self.ended_at = self._kernel.now
        record.finished, record.error = not error, error
        if not error:
            self._means.finished(record.num_prompt_tokens, record.num_tokens)
        del self._requests[request_id]
        self._forget_old_streams()
        self._ended(record)

    def _forget_old_streams(self) -> None:
        """A worker may run a cancelled copy for a while; nothing runs for so long."""
        streams = self._streams
        while streams and streams[0][0] < self._kernel.now - _LONGEST_STREAM:
            _, key = streams.popleft()
            if self._lengths[key].request_id not in self._requests:
                del self._lengths[key]
            else:
                streams.append((self._kernel.now, key))
