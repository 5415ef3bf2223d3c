"""The picker's choices on virtual time, beside least-request, round robin and session hashing.

Endpoints are as vLLM: a pass computes up to a chunk of prompts, first come, first served, and draws
a token for each request that decodes; beginnings of prompts and outputs are cached by last use. The
same sessions in a closed loop for every policy. Figures are exact whatever the machine does.
"""

from __future__ import annotations

import argparse
import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from headway.blocks import block_names
from headway.core.picker.core import GATEWAY_ID, PickerCore
from headway.core.picker.events import (
    EndpointInfo,
    EndpointListed,
    EndpointMetrics,
    Pick,
    PickAsked,
    PickEnded,
    PickerAction,
    PickerEvent,
    Scraped,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.policies.packing.flow_control import FlowControl
from headway.request import Request, SamplingParams

POLICIES = ("picker", "least-request", "round-robin", "session-hash")
LOADS = ("agents", "chats", "shared")
_BLOCK = 16


@dataclass(slots=True)
class Asked:
    """A request; ``owed``: its prompt tokens that are not computed, ``left``: those to draw."""

    request: Request
    output: array[int]
    is_first: bool
    done: Callable[[], None] = lambda: None
    owed: int = 0
    left: int = 0
    begun_at: float = inf


@dataclass(slots=True)
class Endpoint:
    """One endpoint on virtual time."""

    cache_tokens: int
    waiting: deque[Asked] = field(default_factory=deque)
    decoding: list[Asked] = field(default_factory=list)
    busy: bool = False
    computed: int = 0
    hits: int = 0
    through: int = 0
    """Prompt tokens that its passes have computed."""
    seconds: float = 0.0
    """Seconds of prompts, from the first pass to the last, as vLLM counts them."""
    prompts: int = 0
    cache: OrderedDict[object, None] = field(default_factory=OrderedDict)

    @property
    def num_open(self) -> int:
        """Requests that it has."""
        return len(self.waiting) + len(self.decoding)

    def take(self, asked: Asked) -> None:
        """Queue a request, which lacks what is not cached now."""
        tokens = asked.request.prompt_token_ids
        names = block_names(tokens[:-1], _BLOCK)
        held = next((n for n, name in enumerate(names) if name not in self.cache), len(names))
        asked.owed, asked.left = len(tokens) - _BLOCK * held, len(asked.output)
        self.computed += asked.owed
        self.hits += len(tokens) - asked.owed
        self.keep(tokens)
        self.waiting.append(asked)

    def keep(self, tokens: Sequence[int]) -> None:
        """Cache the beginnings of these tokens, and forget what was used longest ago."""
        for name in reversed(block_names(tokens, _BLOCK)):  # the end of a chain goes first
            self.cache.pop(name, None)
            self.cache[name] = None
        while _BLOCK * len(self.cache) > self.cache_tokens:
            self.cache.popitem(last=False)


class Run:
    """One policy under one load."""

    def __init__(self, policy: str, load: str, args: argparse.Namespace, seed: int) -> None:
        self.policy, self.load, self.args, self.seed = policy, load, args, seed
        self.now, self._numbers = 0.0, count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        addresses = (f"10.0.0.{number}:8000" for number in range(1, args.endpoints + 1))
        self.endpoints = {address: Endpoint(args.cache_tokens) for address in addresses}
        self.firsts: list[float] = []
        """Seconds to the first tokens of sessions' first turns; ``laters``: of all others."""
        self.laters: list[float] = []
        self.tasks: list[float] = []
        self._asked: dict[int, Asked] = {}
        self._stream_ids, self._turn = count(1), count()
        settings = SchedulerSettings(
            dispatch="sbs-warm",
            dispatch_params={"watchdog_floor": 1e6},
            prefix_hits=True,
            flow_control=FlowControl(1000),
        )
        self._core = PickerCore(settings)
        self._woken_for = inf
        if policy == "picker":
            for address in self.endpoints:
                self._tell(EndpointListed(EndpointInfo(address, "m", args.chunk_tokens)))
            self._scrape()
        for number in range(args.sessions):
            self._go(self._session(random.Random(seed * 1000 + number), number))

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heappush(self._heap, (self.now + seconds, next(self._numbers), do))

    def run(self) -> None:
        """Run until all sessions are over."""
        while len(self.tasks) < self.args.sessions:
            self.now, _, do = heappop(self._heap)
            do()

    # --- clients ----------------------------------------------------------------------

    def _go(self, session: Iterator[float | Asked]) -> None:
        step = next(session, None)
        if isinstance(step, Asked):
            step.done = lambda: self._go(session)
            self._ask(step)
        elif step is not None:
            self._after(step, lambda: self._go(session))

    def _session(self, dice: random.Random, number: int) -> Iterator[float | Asked]:
        """Yield pauses in seconds, and requests."""
        args, is_chat = self.args, self.load == "chats"
        system = random.Random(self.seed) if self.load == "shared" else dice
        tokens = _draw(system, 0 if is_chat else args.system_tokens)
        yield dice.random()
        begun_at = self.now
        for turn in range(3 if is_chat else args.turns):
            tokens.extend(_draw(dice, dice.randint(20, 80) if is_chat else args.turn_tokens))
            length = min(700, round(dice.lognormvariate(5.0, 0.95)) + 1)
            output = _draw(dice, length if is_chat else args.max_tokens)
            request = Request(
                *(f"{number}/{turn}", "m", array("I", tokens)),
                *(SamplingParams(max_tokens=len(output)), self.now),
                stream_id=next(self._stream_ids),
                gateway_id=GATEWAY_ID,
                session_id=str(number),
            )
            yield Asked(request, output, is_first=not turn)
            tokens.extend(output[-25:] if is_chat else output)  # reasoning is not sent again
            yield dice.expovariate(2.0)
        self.tasks.append(self.now - begun_at)

    def _ask(self, asked: Asked) -> None:
        request, addresses = asked.request, list(self.endpoints)
        self._asked[request.stream_id] = asked
        match self.policy:
            case "picker":
                self._tell(PickAsked(request))
            case "least-request":
                self._send(asked, min(addresses, key=lambda a: (self.endpoints[a].num_open, a)))
            case "round-robin":
                self._send(asked, addresses[next(self._turn) % len(addresses)])
            case _:
                self._send(
                    asked, random.Random(f"{self.seed}/{request.session_id}").choice(addresses)
                )

    # --- the picker -------------------------------------------------------------------

    def _tell(self, event: PickerEvent) -> None:
        self._answer(self._core.handle(event, now=self.now))

    def _answer(self, actions: Iterable[PickerAction]) -> None:
        for action in actions:
            if isinstance(action, Pick):
                self._send(self._asked[action.key.stream_id], action.endpoints[0])
        at = self._core.next_wakeup
        if at is not None and at < self._woken_for:
            self._woken_for = at
            self._after(max(0.0, at - self.now) + 1e-6, self._wake)

    def _wake(self) -> None:
        self._woken_for = inf
        self._answer(self._core.wake(now=self.now))

    def _scrape(self) -> None:
        for address, each in self.endpoints.items():
            figures = EndpointMetrics(
                num_running=each.num_open - len(each.waiting),
                num_waiting=len(each.waiting),
                computed_tokens=each.through,
                prefill_seconds=each.seconds,
                num_prompts=each.prompts,
            )
            self._tell(Scraped(address, figures, self.now))
        self._after(1.0, self._scrape)

    # --- endpoints --------------------------------------------------------------------

    def _send(self, asked: Asked, address: str) -> None:
        endpoint = self.endpoints[address]
        endpoint.take(asked)
        if not endpoint.busy:
            self._pass(endpoint)

    def _pass(self, endpoint: Endpoint) -> None:
        """Compute one pass, and go on for as long as there is something to compute."""
        left, started = self.args.chunk_tokens, list[Asked]()
        for asked in endpoint.waiting:
            taken = min(left, asked.owed)
            asked.owed, left = asked.owed - taken, left - taken
            if taken:
                asked.begun_at = min(asked.begun_at, self.now)
                started.append(asked)
        num_tokens, decoding = self.args.chunk_tokens - left, list(endpoint.decoding)
        endpoint.busy = bool(num_tokens or decoding)
        if not endpoint.busy:
            return
        seconds = 0.01 + 0.0005 * len(decoding) + num_tokens * self.args.token_seconds
        endpoint.through += num_tokens

        def ends() -> None:
            for asked in started:
                if not asked.owed:
                    endpoint.waiting.remove(asked)
                    endpoint.decoding.append(asked)
                    endpoint.seconds += self.now - asked.begun_at
                    endpoint.prompts += 1
                    ttfts = self.firsts if asked.is_first else self.laters
                    ttfts.append(self.now - asked.request.arrival_at)
            for asked in (*decoding, *(each for each in started if not each.owed)):
                asked.left -= 1
                if not asked.left:
                    self._end(endpoint, asked)
            self._pass(endpoint)

        self._after(seconds, ends)

    def _end(self, endpoint: Endpoint, asked: Asked) -> None:
        endpoint.decoding.remove(asked)
        endpoint.keep(array("I", (*asked.request.prompt_token_ids, *asked.output)))
        if self.policy == "picker":
            self._tell(PickEnded(asked.request.key))
        asked.done()


def _draw(dice: random.Random, num_tokens: int) -> array[int]:
    return array("I", (dice.getrandbits(32) for _ in range(num_tokens)))


def _row(runs: Sequence[Run]) -> str:
    firsts, laters = (
        [t for run in runs for t in run.firsts],
        [t for run in runs for t in run.laters],
    )
    ttfts, tasks = firsts + laters, [seconds for run in runs for seconds in run.tasks]
    seconds = [sum(ttfts) / len(ttfts), _at(ttfts, 0.99)]
    seconds += [_at(part, share) for part in (firsts, laters) for share in (0.5, 0.99)]
    each = [endpoint for run in runs for endpoint in run.endpoints.values()]
    hits, computed = sum(e.hits for e in each), sum(e.computed for e in each)
    times = " | ".join(f"{value:.3g} s" for value in (*seconds, sum(tasks) / len(tasks)))
    return f"{times} | {hits / (hits + computed):.2f}"


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--endpoints", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--system-tokens", type=int, default=2000)
    parser.add_argument("--turn-tokens", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--chunk-tokens", type=int, default=8192)
    parser.add_argument("--token-seconds", type=float, default=1e-4)
    parser.add_argument("--cache-tokens", type=int, default=60_000)
    parser.add_argument("--seeds", default="101,102,103")
    args = parser.parse_args()
    print("| load | policy | mean | P99 | first P50 | P99 | later P50 | P99 | task | cached |")
    print("| --- " * 10 + "|")
    for load in args.loads.split(","):
        for policy in args.policies.split(","):
            runs = [Run(policy, load, args, int(seed)) for seed in args.seeds.split(",")]
            for run in runs:
                run.run()
            print(f"| {load} | {policy} | {_row(runs)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
