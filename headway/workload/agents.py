"""Sessions from a seed: agents with tools and sub-agents, chats, and what runs beside them.

Kinds: ``agents`` and ``chats``; ``aiperf``, agents as AIPerf's generator of agentic code has them,
with a sixth of its default tokens; ``hot``, requests that share 8,192 tokens and have tails of
their own (sglang#21199); ``mixed``, agents beside long cold prompts and short ones with long
reasoning; ``skewed``, agents of which a few are long and quick, and fork often.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from types import MappingProxyType

from headway.bounds import Bounded, at_least, between, one_of, over
from headway.errors import invalid, require_between, require_over
from headway.workload.session import BLOCK_TOKENS, Session, SessionTurn

COMPACT, END = "compact", "end"
MOST_SESSIONS = 1_000_000
_MOST_TOKENS = 1 << 24
_MOST_SIGMA = 5.0
_MOST_PAUSE = 120.0
_SUMMARY = 2000
"""Tokens of what an agent keeps of a context that it compacts."""


@dataclass(frozen=True, slots=True)
class AgentParams(Bounded):
    """Lengths and pauses of sessions: medians in tokens and seconds, with the sigma of their logs.

    ``types``: different system prompts, the k-th drawn with weight k^-``zipf``. ``system``: of a
    system prompt; ``first``, ``new``: what the first and each later turn bring; ``out``: an answer.
    ``turns``: their mean. ``human``: the share of pauses with the median ``human_pause``.
    ``fork``: the chance that a turn behind the first starts up to ``children`` sub-agents of
    ``child_turns`` turns in the mean, of which the share ``inherits`` goes on from its context.
    ``when_full``: what happens over ``most_context`` tokens.
    """

    types: int = between(1, 10_000, default=4)
    zipf: float = between(0, 10, default=1.0)
    system: int = between(64, 20_000, default=5000)
    system_sigma: float = between(0, _MOST_SIGMA, default=0.35)
    first: int = between(16, 30_000, default=1500)
    first_sigma: float = between(0, _MOST_SIGMA, default=0.8)
    turns: float = between(1, 10_000, default=12.0)
    most_turns: int = between(1, 10_000, default=40)
    new: int = between(16, 12_000, default=700)
    new_sigma: float = between(0, _MOST_SIGMA, default=1.0)
    out: int = between(8, _MOST_TOKENS, default=180)
    out_sigma: float = between(0, _MOST_SIGMA, default=0.8)
    most_out: int = between(8, _MOST_TOKENS, default=2000)
    pause: float = over(0, _MOST_PAUSE, default=3.0)
    pause_sigma: float = between(0, _MOST_SIGMA, default=1.2)
    human: float = between(0, 1, default=0.1)
    human_pause: float = over(0, _MOST_PAUSE, default=20.0)
    fork: float = between(0, 1, default=0.05)
    children: int = between(1, 100, default=3)
    child_turns: int = between(1, 1000, default=4)
    inherits: float = between(0, 1, default=0.5)
    most_context: int = at_least(1024, default=60_000)
    when_full: str = one_of(COMPACT, END, default=COMPACT)


AGENTS = AgentParams()
CHATS = AgentParams(
    types=1,
    system=600,
    first=120,
    turns=5.0,
    new=80,
    out=300,
    pause=25.0,
    pause_sigma=0.9,
    human=0.0,
    fork=0.0,
    most_context=32_000,
)
AIPERF = AgentParams(
    types=1,
    system=5333,
    system_sigma=0.0,
    first=833,
    first_sigma=1.2,
    turns=10_000.0,
    new=1100,
    new_sigma=0.1,
    out=167,
    out_sigma=0.1,
    pause=1.8,
    pause_sigma=0.81,
    human=0.3,
    human_pause=25.0,
    fork=0.0,
    most_context=28_800,
    when_full=END,
)
KINDS: Mapping[str, AgentParams] = {
    "agents": AGENTS,
    "chats": CHATS,
    "aiperf": AIPERF,
    "hot": AGENTS,
    "mixed": AGENTS,
    "skewed": AGENTS,
}


def make_sessions(
    kind: str, seed: int, num_sessions: int, rate: float, params: AgentParams | None = None
) -> list[Session]:
    """Return sessions with Poisson starts; children stand behind their parents.

    ``num_sessions`` start by themselves, ``rate`` of them a second. ``params``: instead of the
    kind's own.
    """
    if kind not in KINDS:
        raise invalid("kind", kind, f"one of {', '.join(KINDS)}")
    require_between("sessions", num_sessions, 1, MOST_SESSIONS)
    require_over("rate", rate, 0)
    maker = _Maker(random.Random(seed), params or KINDS[kind])
    start = _STARTS.get(kind, _agent)
    hot = [maker.fresh(_HOT_BLOCKS) for _ in range(2)]
    now = 0.0
    for _ in range(num_sessions):
        now += maker.rng.expovariate(rate)
        start(maker, now, maker.rng.random(), hot)
    return maker.sessions()


class _Maker:
    """Draws sessions; ``ids`` name blocks of one session after the other."""

    def __init__(self, rng: random.Random, params: AgentParams) -> None:
        self.rng = rng
        self.params = params
        self._ids = count(1)
        self._sessions: list[Session | None] = []
        drawn = (params.system, params.system_sigma, 64, 20_000)
        self._systems = [self.tokens(*drawn) for _ in range(params.types)]
        self._system_ids = [self.fresh(length // BLOCK_TOKENS) for length in self._systems]
        self._weights = [1 / (place + 1) ** params.zipf for place in range(params.types)]

    def sessions(self) -> list[Session]:
        return [each for each in self._sessions if each is not None]

    def fresh(self, num: int) -> list[int]:
        return list(islice(self._ids, max(0, num)))

    def tokens(self, median: float, sigma: float, least: float, most: float) -> int:
        """Draw a lognormal number between two others."""
        return int(min(max(self.rng.lognormvariate(math.log(median), sigma), least), most))

    def single(
        self, at: float, prompt: int, output: int, kind: str, known: Sequence[int] = ()
    ) -> None:
        """Add a session of one turn, whose prompt begins with the ``known`` blocks."""
        ids = [*known]
        self._cover(ids, prompt + output)
        reasoning = output // 2 if kind == "reasoning" else 0
        turn = SessionTurn(0.0, prompt, output, tuple(ids), (), reasoning)
        self._sessions.append(Session(len(self._sessions), kind, at, (turn,)))

    def agent(
        self,
        at: float | None,
        *,
        turns: int | None = None,
        inherited: tuple[int, list[int]] | None = None,
        heavy: float = 1.0,
    ) -> int:
        """Add a session, and its children behind it; return its number.

        ``inherited``: the context that a child goes on from, tokens and ids. ``heavy``: how many
        times as long it is.
        """
        number, params = len(self._sessions), self.params
        self._sessions.append(None)
        kind = self.rng.choices(range(params.types), self._weights)[0]
        held, ids = inherited or self._beginning(kind)
        held += self.tokens(params.first * heavy, params.first_sigma, 16, 30_000)
        drawn: list[SessionTurn] = []
        for place in range(turns or self._num_turns(heavy)):
            output = self.tokens(params.out, params.out_sigma, 8, params.most_out)
            pause = round(self._pause(), 3) if place else 0.0
            self._cover(ids, held + output)
            forks = at is not None and place > 0 and self.rng.random() < params.fork
            whole = held // BLOCK_TOKENS
            children = self._children(whole * BLOCK_TOKENS, ids[:whole]) if forks else ()
            drawn.append(SessionTurn(pause, held, output, tuple(ids), children))
            held += output + self.tokens(params.new, params.new_sigma, 16, 12_000)
            if held > params.most_context:
                if params.when_full == END:
                    break
                held, ids = self._beginning(kind)
                held += _SUMMARY
        name = "sub" if at is None else "agent"
        self._sessions[number] = Session(number, name, at, tuple(drawn))
        return number

    def _beginning(self, kind: int) -> tuple[int, list[int]]:
        """Return the tokens and the whole blocks of a system prompt."""
        return self._systems[kind], [*self._system_ids[kind]]

    def _num_turns(self, heavy: float) -> int:
        params = self.params
        more = self.rng.expovariate(1 / max(params.turns * heavy - 1, 0.01))
        return min(1 + int(more), int(params.most_turns * heavy))

    def _pause(self) -> float:
        params = self.params
        if self.rng.random() < params.human:
            return self.tokens(params.human_pause * 1000, 0.7, 1000, 1000 * _MOST_PAUSE) / 1000
        return self.tokens(params.pause * 1000, params.pause_sigma, 50, 1000 * _MOST_PAUSE) / 1000

    def _children(self, held: int, ids: list[int]) -> tuple[int, ...]:
        rng, params = self.rng, self.params
        children = []
        for _ in range(rng.randint(1, params.children)):
            inherited = (held, [*ids]) if rng.random() < params.inherits and held else None
            turns = rng.randint(1, 2 * params.child_turns - 1)
            children.append(self.agent(None, turns=turns, inherited=inherited))
        return tuple(children)

    def _cover(self, ids: list[int], length: int) -> None:
        ids += self.fresh(-(-length // BLOCK_TOKENS) - len(ids))


# --- kinds ----------------------------------------------------------------------------

_HOT_BLOCKS = 16
_Start = Callable[[_Maker, float, float, Sequence[Sequence[int]]], object]


def _agent(maker: _Maker, at: float, draw: float, hot: Sequence[Sequence[int]]) -> None:
    maker.agent(at)


def _hot(maker: _Maker, at: float, draw: float, hot: Sequence[Sequence[int]]) -> None:
    """Four in five have the first of two beginnings."""
    length = _HOT_BLOCKS * BLOCK_TOKENS + maker.rng.randint(100, 600)
    output = maker.tokens(120, 0.6, 8, 1000)
    maker.single(at, length, output, "hot", hot[maker.rng.random() < 0.2])


def _mixed(maker: _Maker, at: float, draw: float, hot: Sequence[Sequence[int]]) -> None:
    if draw < 0.35:
        prompt = maker.tokens(14_000, 0.6, 2000, 48_000)
        maker.single(at, prompt, maker.tokens(150, 0.6, 8, 1000), "cold")
    elif draw < 0.7:
        prompt = maker.tokens(500, 0.7, 32, 4000)
        maker.single(at, prompt, maker.tokens(1800, 0.6, 200, 8000), "reasoning")
    else:
        maker.agent(at)


def _skewed(maker: _Maker, at: float, draw: float, hot: Sequence[Sequence[int]]) -> None:
    """A few are heavy: long, quick, with branches that all go on from their parent's context."""
    usual = maker.params
    if draw < 0.06:
        maker.params = replace(usual, pause=0.6, fork=0.35, children=6, inherits=1.0)
        maker.agent(at, heavy=3.0)
        maker.params = usual
    else:
        maker.agent(at)


_STARTS: Mapping[str, _Start] = MappingProxyType({"hot": _hot, "mixed": _mixed, "skewed": _skewed})


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """A load in numbers; ``shared``: the share of prompt tokens that an endless cache would hit."""

    num_sessions: int
    num_requests: int
    mean_input: float
    mean_output: float
    shared: float

    @classmethod
    def of(cls, sessions: Sequence[Session]) -> SessionCounts:
        """Count sessions, in the order that they stand in."""
        turns = [turn for each in sessions for turn in each.turns]
        seen: set[int] = set()
        num_hits = 0
        for turn in turns:
            whole = turn.hash_ids[: turn.input_length // BLOCK_TOKENS]
            num_hits += BLOCK_TOKENS * sum(takewhile(bool, (each in seen for each in whole)))
            seen.update(turn.hash_ids)
        num_input = sum(turn.input_length for turn in turns)
        num_output = sum(turn.output_length for turn in turns)
        num = max(1, len(turns))
        share = num_hits / max(1, num_input)
        return cls(len(sessions), len(turns), num_input / num, num_output / num, share)
