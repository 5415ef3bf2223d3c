"""The load of a virtual comparison: chats and long reasoning, as many as an engine carries."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from headway.errors import invalid
from headway.tables import parse
from headway.workload.lengths import Lengths, parse_lengths


class MixArrival(NamedTuple):
    """A request, seconds after the beginning; lengths in tokens, no reasoning: thinking is off."""

    at: float
    prompt: int
    reasoning: int
    answer: int
    is_read: bool

    @property
    def priority(self) -> int:
        """The number that vLLM's ``priority`` order goes by: 0 for a chat, 1 for reasoning."""
        return int(self.reasoning > 0)

    @property
    def num_output(self) -> int:
        """Tokens of the output."""
        return self.reasoning + self.answer


_PROMPT = {"distribution": "lognormal", "median": 400, "sigma": 0.8, "min": 32, "max": 4000}
_CHAT = {"distribution": "lognormal", "median": 150, "sigma": 0.7, "min": 8, "max": 1000}
_REASONING = {"distribution": "lognormal", "median": 1200, "sigma": 0.6, "min": 64, "max": 5000}
_ANSWER = {"distribution": "lognormal", "median": 250, "sigma": 0.5, "min": 16, "max": 1000}
_KINDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "chat": {"prompt": _PROMPT, "answer": _CHAT},
        "long": {"prompt": _PROMPT, "reasoning": _REASONING, "answer": _ANSWER},
    }
)


@dataclass(frozen=True, slots=True)
class VllmMix:
    """Lengths by kind, and the share of requests whose client does not stream."""

    lengths: dict[str, dict[str, Lengths]]
    unread: float = 0.0

    def draw(self, count: int, long_share: float, rng: random.Random) -> Sequence[MixArrival]:
        """Draw so many requests, all at the beginning; ``long_share`` of them reason."""
        arrivals = []
        for _ in range(count):
            kind = "long" if rng.random() < long_share else "chat"
            each = {name: draw(rng) for name, draw in self.lengths[kind].items()}
            is_read = rng.random() >= self.unread
            lengths = (each["prompt"], max(2, each["reasoning"]) if kind == "long" else 0)
            arrivals.append(MixArrival(0.0, *lengths, max(1, each["answer"]), is_read))
        return arrivals


def read_mix(file: Path | None = None, unread: float = 0.0) -> VllmMix:
    """Return the mix of a TOML file, or the one that this page has.

    Tables ``chat`` (``prompt``, ``answer``) and ``long`` (``reasoning``, too), each a number of
    tokens or a distribution as in a scenario. HeadwayError says what is wrong.
    """
    given: dict[str, Any] = {} if file is None else parse(_text(file), f"mix {file}", "mix")
    for name in given:
        if name not in _KINDS:
            raise invalid(f"a table of {file}", name, " or ".join(_KINDS))
    lengths = {
        kind: {
            name: parse_lengths(f"{kind}.{name}", given.get(kind, {}).get(name, table))
            for name, table in tables.items()
        }
        for kind, tables in _KINDS.items()
    }
    return VllmMix(lengths, unread)


def spaced(load: Sequence[MixArrival], rate: float, rng: random.Random) -> Sequence[MixArrival]:
    """Return the requests as a Poisson process of ``rate`` requests/s."""
    at, arrivals = 0.0, []
    for each in load:
        at += rng.expovariate(rate)
        arrivals.append(each._replace(at=at))
    return arrivals


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise invalid("--mix", file, f"a file that can be read ({error})") from error
