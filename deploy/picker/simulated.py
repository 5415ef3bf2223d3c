"""The picker's choices on virtual time, beside least-request, round robin and session hashing.

Endpoints as ``emulated_endpoint.py`` has them: one prompt at a time, a cache of blocks by last use.
The same sessions in a closed loop for every policy. Figures are exact whatever the machine does.
"""

from __future__ import annotations

import argparse
import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from headway.blocks import waypoint_names
from headway.core.picker.core import GATEWAY_ID, PickerCore
from headway.core.picker.events import (
    EndpointInfo,
    EndpointListed,
    EndpointMetrics,
    Pick,
    PickAsked,
    PickEnded,
    Scraped,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.policies.packing.flow_control import FlowControl
from headway.request import Request, SamplingParams, StreamKey

POLICIES = ("picker", "least-request", "round-robin", "session-hash")


@dataclass
class Endpoint:
    """One emulated endpoint on virtual time."""

    token: float
    cache_tokens: int
    queue: deque[tuple[int, Request]] = field(default_factory=deque)
    busy: bool = False
    num_open: int = 0
    num_decoding: int = 0
    computed: float = 0.0
    hits: float = 0.0
    cache: OrderedDict[object, None] = field(default_factory=OrderedDict)

    def uncached(self, request: Request) -> int:
        """Return the tokens to compute of a prompt, and keep it in the cache."""
        names = waypoint_names(request.prompt_token_ids)
        held = next((n for n, name in enumerate(names) if name not in self.cache), len(names))
        for name in names:
            self.cache.pop(name, None)
            self.cache[name] = None
        while len(self.cache) * 64 > self.cache_tokens:
            self.cache.popitem(last=False)
        tokens = max(1, request.num_tokens - 64 * held)
        self.computed += tokens
        self.hits += request.num_tokens - tokens
        return tokens


class Run:
    """One policy under one load."""

    def __init__(self, policy: str, args: argparse.Namespace, seed: int) -> None:
        self.policy, self.args = policy, args
        self.now, self._numbers, self._heap = (
            0.0,
            count(),
            list[tuple[float, int, Callable[[], None]]](),
        )
        self.endpoints = {
            f"10.0.0.{n}:8000": Endpoint(args.token_seconds, args.cache_tokens)
            for n in range(1, args.endpoints + 1)
        }
        self.ttfts: list[float] = []
        self.tasks: list[float] = []
        self._asked: dict[int, tuple[Request, Callable[[], None]]] = {}
        self._stream_ids, self._turn = count(1), count()
        settings = SchedulerSettings(
            dispatch="sbs-warm",
            dispatch_params={"watchdog_floor": 1e6},
            prefix_hits=True,
            flow_control=FlowControl(1000),
        )
        self._core = PickerCore(settings)
        self._woken_for = float("inf")
        if policy == "picker":
            for address in self.endpoints:
                self._tell(EndpointListed(EndpointInfo(address, "m")))
            self._scrape()
        for number in range(args.sessions):
            dice = random.Random(seed * 1000 + number)
            self._after(dice.random(), lambda d=dice, n=number: self._session(d, n))

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heappush(self._heap, (self.now + seconds, next(self._numbers), do))

    def run(self) -> None:
        """Run until all sessions are over."""
        while len(self.tasks) < self.args.sessions:
            self.now, _, do = heappop(self._heap)
            do()

    # --- clients ----------------------------------------------------------------------

    def _session(self, dice: random.Random, number: int) -> None:
        tokens, begun_at = array("I", (dice.getrandbits(32) for _ in range(2000))), self.now
        left = iter(range(self.args.turns))

        def turn() -> None:
            if next(left, None) is None:
                self.tasks.append(self.now - begun_at)
                return
            tokens.extend(dice.getrandbits(32) for _ in range(300 + self.args.max_tokens))
            self._ask(array("I", tokens), number, lambda: self._after(dice.expovariate(2.0), turn))

        turn()

    def _ask(self, tokens: array[int], session: int, done: Callable[[], None]) -> None:
        stream_id = next(self._stream_ids)
        sampling = SamplingParams(max_tokens=self.args.max_tokens)
        request = Request(
            *(str(stream_id), "m", tokens, sampling, self.now),
            stream_id=stream_id,
            gateway_id=GATEWAY_ID,
        )
        self._asked[stream_id] = request, done
        addresses = list(self.endpoints)
        match self.policy:
            case "picker":
                self._tell(PickAsked(request))
            case "least-request":
                first = min(addresses, key=lambda a: (self.endpoints[a].num_open, a))
                self._send(stream_id, first)
            case "round-robin":
                self._send(stream_id, addresses[next(self._turn) % len(addresses)])
            case _:
                self._send(stream_id, addresses[random.Random(session).randrange(len(addresses))])

    # --- the picker -------------------------------------------------------------------

    def _tell(self, event: object) -> None:
        self._answer(self._core.handle(event, now=self.now))  # type: ignore[arg-type]

    def _answer(self, actions: object) -> None:
        for action in actions:  # type: ignore[attr-defined]
            if isinstance(action, Pick):
                self._send(action.key.stream_id, action.endpoints[0])
        at = self._core.next_wakeup
        if at is not None and at < self._woken_for:
            self._woken_for = at
            self._after(max(0.0, at - self.now) + 1e-6, self._wake)

    def _wake(self) -> None:
        self._woken_for = float("inf")
        self._answer(self._core.wake(now=self.now))

    def _scrape(self) -> None:
        for address, each in self.endpoints.items():
            figures = EndpointMetrics(
                num_running=each.num_decoding + each.busy,
                num_waiting=len(each.queue),
                computed_tokens=each.computed,
                prefill_seconds=each.computed * each.token,
            )
            self._tell(Scraped(address, figures, self.now))
        self._after(1.0, self._scrape)

    # --- endpoints --------------------------------------------------------------------

    def _send(self, stream_id: int, address: str) -> None:
        endpoint = self.endpoints[address]
        endpoint.num_open += 1
        endpoint.queue.append((stream_id, self._asked[stream_id][0]))
        self._prefill(endpoint)

    def _prefill(self, endpoint: Endpoint) -> None:
        if endpoint.busy or not endpoint.queue:
            return
        endpoint.busy = True
        stream_id, request = endpoint.queue.popleft()

        def through() -> None:
            endpoint.busy = False
            self.ttfts.append(self.now - request.arrival_at)
            endpoint.num_decoding += 1
            step = 0.01 + 0.0005 * endpoint.num_decoding
            self._after(self.args.max_tokens * step, lambda: self._end(endpoint, stream_id))
            self._prefill(endpoint)

        self._after(endpoint.uncached(request) * endpoint.token, through)

    def _end(self, endpoint: Endpoint, stream_id: int) -> None:
        endpoint.num_open -= 1
        endpoint.num_decoding -= 1
        done = self._asked.pop(stream_id)[1]
        if self.policy == "picker":
            self._tell(PickEnded(StreamKey(GATEWAY_ID, stream_id)))
        done()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--token-seconds", type=float, default=1e-4)
    parser.add_argument("--cache-tokens", type=int, default=60_000)
    parser.add_argument("--seeds", default="101,102,103")
    args = parser.parse_args()
    print("| policy | TTFT mean | P50 | P99 | task | cached |")
    print("| --- | --- | --- | --- | --- | --- |")
    for policy in POLICIES:
        rows = []
        for seed in map(int, args.seeds.split(",")):
            run = Run(policy, args, seed)
            run.run()
            ordered, each = sorted(run.ttfts), run.endpoints.values()
            hits, computed = sum(e.hits for e in each), sum(e.computed for e in each)
            rows.append(
                (
                    sum(ordered) / len(ordered),
                    ordered[len(ordered) // 2],
                    ordered[int(0.99 * len(ordered))],
                    sum(run.tasks) / len(run.tasks),
                    hits / (hits + computed),
                )
            )
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        shown = " | ".join(f"{value:.3g} s" for value in means[:4])
        print(f"| {policy} | {shown} | {means[4]:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
