"""Sessions in a closed loop: a turn follows the end of the one before, after its pause."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.agents.history import History
from bench.agents.texts import Measure, Texts
from bench.serve.client import NO_HEADERS, Client, RequestFailedError
from bench.serve.plan import PATHS, Planned
from bench.serve.replay import ReplayedRequest, ask
from headway.workload.sessions import Session

SESSION_HEADER, END_HEADER = "x-session-id", "x-session-end"


@dataclass(frozen=True, slots=True)
class AgentRequests:
    """What every request of a run has alike.

    ``names``: whether requests name their session. ``limit``: tokens of a prompt with its output,
    where the endpoint says it. ``seconds``: after which no turn begins.
    """

    model: str
    salt: str
    names: bool = True
    thinks: bool = False
    ignores_eos: bool = True
    limit: int | None = None
    seconds: float = float("inf")

    def body(self, messages: Sequence[Mapping[str, str]], num_tokens: int) -> bytes:
        """Return a streamed request, greedy, so that every system gives the same answers."""
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": num_tokens,
        }
        if self.ignores_eos:
            body["ignore_eos"] = True
        if not self.thinks:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return json.dumps(body).encode()

    def headers(self, session: int, is_last: bool) -> Mapping[str, str]:
        """Return what names the session, and says that its last turn is one."""
        if not self.names:
            return NO_HEADERS
        name = {SESSION_HEADER: f"{self.salt}-{session}"}
        return name | ({END_HEADER: "true"} if is_last else {})


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A turn's outcome; ``num_repeated``: tokens of its prompt that an earlier one had."""

    session: int
    kind: str
    place: int
    request: ReplayedRequest
    num_repeated: int


@dataclass(slots=True)
class SessionLife:
    """A session as it went; instants in seconds after the start of the run.

    ``cut`` says why it ended before its last turn, "" where it did not.
    """

    session: int
    kind: str
    is_task: bool
    begun_at: float
    ended_at: float = 0.0
    cut: str = "stopped"


@dataclass(slots=True)
class AgentRun:
    """Everything that one run gave."""

    turns: list[AskedTurn] = field(default_factory=list)
    lives: list[SessionLife] = field(default_factory=list)
    seconds: float = 0.0


class AgentLoop:
    """A run of sessions against one endpoint; ``system``: tokens of its message, by session."""

    def __init__(
        self,
        client: Client,
        asking: AgentRequests,
        measure: Measure,
        sessions: Sequence[Session],
        block: int,
        system: Mapping[int, int],
    ) -> None:
        self._client = client
        self._asking = asking
        self._measure = measure
        self._sessions = {each.number: each for each in sessions}
        self._block = block
        self._system = system
        self._texts = Texts(asking.salt, measure.chars_per_token, block)
        self._started_at = 0.0
        self.outcome = AgentRun()

    async def run(self, stopping: asyncio.Event) -> AgentRun:
        """Run all sessions to their end; ``stopping`` cuts them short."""
        self._started_at = time.perf_counter()
        tasks = [
            asyncio.create_task(self._start(each, each.at))
            for each in self._sessions.values()
            if each.at is not None
        ]
        running = asyncio.gather(*tasks)
        stops = asyncio.create_task(_cancel_after(stopping, running))
        try:
            await running
        except asyncio.CancelledError:
            if not stopping.is_set():
                raise
        finally:
            stops.cancel()
            running.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.outcome.seconds = self._now()
        return self.outcome

    def _now(self) -> float:
        return time.perf_counter() - self._started_at

    async def _start(self, session: Session, at: float) -> None:
        if at < self._asking.seconds:
            await asyncio.sleep(at - self._now())
            system = self._system.get(session.number, 0)
            own = str(session.number)
            await self._live(session, History(self._texts, self._measure, own, system))

    async def _live(self, session: Session, conversation: History) -> None:
        """Ask every turn of a session, and wait for the children of each."""
        is_task = session.at is not None
        life = SessionLife(session.number, session.kind, is_task, self._now())
        self.outcome.lives.append(life)
        try:
            life.cut = await self._turns(session, conversation)
        finally:
            life.ended_at = self._now()

    async def _turns(self, session: Session, conversation: History) -> str:
        """Return why the session was cut, "" where it ended."""
        limit = self._asking.limit
        for place, turn in enumerate(session.turns):
            if place:
                await asyncio.sleep(turn.pause)
            if self._now() > self._asking.seconds:
                return "time is up"
            if limit is not None and conversation.length(turn) + turn.output_length > limit:
                return "context is full"
            if not await self._ask(session, place, conversation):
                return "a turn failed"
            children = [self._sessions[number] for number in turn.children]
            await asyncio.gather(
                *(self._live(each, self._branch(conversation, each)) for each in children)
            )
        return ""

    def _branch(self, conversation: History, child: Session) -> History:
        system = self._system.get(child.number, 0)
        return conversation.branch(child.turns[0], str(child.number), system, self._block)

    async def _ask(self, session: Session, place: int, conversation: History) -> bool:
        """Ask one turn and keep its outcome; return whether it was answered."""
        turn, num_repeated = session.turns[place], conversation.num_prompt_tokens
        body = self._asking.body(conversation.ask(turn), turn.output_length)
        headers = self._asking.headers(session.number, place == len(session.turns) - 1)
        index, now = len(self.outcome.turns), self._now()
        planned = Planned(index, now, body, session.kind, None, headers=headers)
        request = ReplayedRequest(planned, now)
        self.outcome.turns.append(
            AskedTurn(session.number, session.kind, place, request, num_repeated)
        )
        try:
            stream = await ask(self._client, PATHS["chat"], request, self._started_at)
        except RequestFailedError as error:
            request.error_kind, request.error = error.kind, error.detail
            return False
        except asyncio.CancelledError:
            request.error_kind, request.error = "stopped", "the run was stopped"
            raise
        finally:
            request.ended_at = self._now()
        conversation.answered(stream.answer, request.prompt_tokens, stream.completion_tokens or 0)
        return True


async def _cancel_after(stopping: asyncio.Event, running: asyncio.Future[list[None]]) -> None:
    await stopping.wait()
    running.cancel()
