"""Hidden states to the predictor, remaining lengths back: off the critical path.

Nothing waits for it. Passes queue while a call is under way; beyond a few the oldest is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import grpc

from headway.core.worker.events import AskPredictor, Predicted, PredictorKnown
from headway.errors import Code, HeadwayError
from headway.forward_pass import HiddenStates
from headway.messages import FinishedRequest
from services.runtime import wire
from services.runtime.channel import Channels
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks, essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.membership import MembershipWatch
from services.runtime.store import Member, Store
from services.worker.metrics import PredictionMetrics

MOST_QUEUED = 4  # passes
MOST_BYTES = 2 << 20  # of hidden states in one call; gRPC takes 4 MiB
_MOST_ENDED = 8192
_CALL_TIMEOUT = 1.0
_REST = 5.0  # seconds before retrying a predictor that does not know the model


class PredictorLink:
    """A client of the cluster's first predictor; it tells the core whether there is one."""

    def __init__(
        self,
        config: ServiceConfig,
        model: str,
        store: Store,
        post: Callable[[Predicted | PredictorKnown], None],
        metrics: PredictionMetrics,
    ) -> None:
        self._config = config
        self._model = model
        self._post = post
        self._metrics = metrics
        self._queue: deque[AskPredictor] = deque()
        self._ended: deque[FinishedRequest] = deque(maxlen=_MOST_ENDED)
        self._wanted = asyncio.Event()
        self._members: dict[str, Member] = {}
        self._watch = MembershipWatch(store, "predictor", self._joined, self._left)
        self._asking: asyncio.Task[None] | None = None
        self._log = get_logger()

    def start(self) -> None:
        """Start looking for a predictor."""
        self._watch.start()

    async def stop(self) -> None:
        """Stop asking."""
        await self._watch.stop()
        await self._hang_up()

    def ask(self, question: AskPredictor) -> None:
        """Queue one pass's states without blocking; drop the oldest if the queue is full."""
        if len(self._queue) == MOST_QUEUED:
            self._queue.popleft()
            self._metrics.dropped.inc()
        self._queue.append(question)
        self._wanted.set()

    def ended(self, finished: Sequence[FinishedRequest]) -> None:
        """Queue lengths of finished requests, to send with the next question."""
        if self._asking is not None:
            self._ended.extend(finished)

    # --- choice of the predictor ------------------------------------------------------

    def _joined(self, member: Member) -> None:
        self._members[member.member_id] = member
        self._choose()

    def _left(self, member: Member) -> None:
        self._members.pop(member.member_id, None)
        self._choose()

    def _choose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self._know(False)
        if self._members:
            chosen = self._members[min(self._members)]
            self._asking = essential(self._run(chosen.address), "predictor link")

    async def _hang_up(self) -> None:
        await end_tasks(self._asking)

    def _know(self, is_known: bool) -> None:
        self._queue.clear()
        self._post(PredictorKnown(is_known))

    # --- calls ------------------------------------------------------------------------

    async def _run(self, address: str) -> None:
        channels = Channels(self._config, ServiceRole.PREDICTOR)
        try:
            while True:
                self._know(True)
                await self._serve(partial(channels.to, address))
                self._know(False)  # it does not know the model: perhaps later
                self._ended.clear()
                await asyncio.sleep(_REST)
        finally:
            await channels.close()

    async def _serve(self, channel: Callable[[], grpc.aio.Channel]) -> None:
        """Send questions until the predictor reports that it does not know the model."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._queue:
                for part in _parts(self._queue.popleft()):
                    try:
                        await self._ask(channel(), part)
                    except HeadwayError as error:
                        self._metrics.failed.labels(error.code.value).inc()
                        if error.code is Code.NOT_FOUND:
                            self._log.info("no_predictor", reason=error.message)
                            return

    async def _ask(self, channel: grpc.aio.Channel, question: AskPredictor) -> None:
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        packed = wire.pack_question(
            self._model,
            question.hidden,
            question.num_output_tokens,
            ended,
            question.num_prompt_tokens,
        )
        with self._metrics.latency.time():
            remaining, weight = await wire.predict(channel, packed, within=_CALL_TIMEOUT)
        self._metrics.predicted.inc(len(remaining))
        keys = question.hidden.keys
        self._post(Predicted(keys, question.num_output_tokens, remaining, weight))


def _parts(question: AskPredictor) -> Iterator[AskPredictor]:
    """Split a question into calls small enough for gRPC: one, unless the batch is very large."""
    hidden = question.hidden
    num_rows = max(1, MOST_BYTES // max(1, hidden.values[0].nbytes))
    for start in range(0, len(hidden.keys), num_rows):
        rows = slice(start, start + num_rows)
        part = HiddenStates(hidden.keys[rows], hidden.values[rows])
        yield AskPredictor(part, question.num_output_tokens[rows], question.num_prompt_tokens[rows])
