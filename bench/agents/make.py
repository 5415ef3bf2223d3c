"""Sessions from a seed, small enough for the endpoint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headway.errors import Code, HeadwayError
from headway.workload.sessions import Session, SessionTurn

BLOCK = 16
"""Tokens of a block of these sessions: short, because the prompts are."""
_SPREAD = 0.5  # lengths are drawn uniformly from this much below their mean to as much above
_CHILD_TURNS = 2


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """Sessions to make; lengths are means, in tokens, ``pause`` a mean in seconds.

    ``kinds``: different system prompts, 0 for one of its own for each session. ``fork``: the
    chance that a turn starts a child, which inherits its context.
    """

    num_sessions: int = 12
    num_turns: int = 6
    kinds: int = 0
    system: int = 300
    first: int = 80
    new: int = 60
    output: int = 60
    pause: float = 1.0
    fork: float = 0.0


def make_sessions(load: AgentLoad, seed: int) -> list[Session]:
    """Return the sessions, children behind them; all start at once."""
    return _Maker(load, seed).sessions()


class _Maker:
    def __init__(self, load: AgentLoad, seed: int) -> None:
        self._load = load
        self._rng = random.Random(f"agents {seed}")
        self._fresh_ids = itertools.count(1)
        self._systems = [self._system() for _ in range(load.kinds)]
        self._numbers = itertools.count(load.num_sessions)
        self._children: list[Session] = []

    def sessions(self) -> list[Session]:
        load = self._load
        tops = []
        for number in range(load.num_sessions):
            ids = list(self._rng.choice(self._systems)) if self._systems else self._system()
            turns = self._turns(ids, len(ids) * BLOCK, load.num_turns, load.fork)
            tops.append(Session(number, "agent", 0.0, tuple(turns)))
        return [*tops, *self._children]

    def _turns(
        self, ids: list[int], held: int, num_turns: int, fork: float
    ) -> Iterator[SessionTurn]:
        """Yield turns whose prompts grow by what was answered and what is asked next."""
        load = self._load
        for place in range(num_turns):
            held += self._draw(load.new if place else load.first)
            output = self._draw(load.output)
            ids += self._ids(-(-held // BLOCK) - len(ids))
            pause = self._rng.expovariate(1.0 / load.pause) if place and load.pause else 0.0
            forks = self._rng.random() < fork
            children = (self._child(ids, held),) if forks else ()
            yield SessionTurn(pause, held, output, tuple(ids), children)
            held += output

    def _child(self, ids: Sequence[int], held: int) -> int:
        """Make a child that goes on from the whole blocks of its parent's prompt."""
        number = next(self._numbers)
        inherited = list(ids[: held // BLOCK])
        turns = self._turns(inherited, len(inherited) * BLOCK, _CHILD_TURNS, 0.0)
        self._children.append(Session(number, "child", None, tuple(turns)))
        return number

    def _system(self) -> list[int]:
        return self._ids(max(1, self._load.system // BLOCK))

    def _ids(self, num: int) -> list[int]:
        return list(itertools.islice(self._fresh_ids, max(0, num)))

    def _draw(self, mean: int) -> int:
        return max(1, round(mean * self._rng.uniform(1.0 - _SPREAD, 1.0 + _SPREAD)))


def scaled(sessions: Sequence[Session], scale: float) -> list[Session]:
    """Return the sessions with every length times ``scale``, at least one token."""
    return [
        replace(each, turns=tuple(_scaled(turn, scale) for turn in each.turns)) for each in sessions
    ]


def _scaled(turn: SessionTurn, scale: float) -> SessionTurn:
    lengths = [max(1, round(each * scale)) for each in (turn.input_length, turn.output_length)]
    return replace(turn, input_length=lengths[0], output_length=lengths[1])


def refuse_too_long(sessions: Sequence[Session], limit: int | None) -> None:
    """Raise HeadwayError where no session's first turn fits into the model's context."""
    firsts = [each.turns[0] for each in sessions if each.at is not None]
    shortest = min((turn.input_length + turn.output_length for turn in firsts), default=0)
    if limit is not None and shortest > limit:
        message = (
            f"the shortest first turn has {shortest} tokens and the model takes {limit}: "
            f"give --scale {limit / shortest / 2:.2g} or less"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
