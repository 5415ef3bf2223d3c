"""vLLM in a worker's process, planning its own passes in a Headway policy's order.

One thread runs vLLM's steps. Between two of them it follows the worker's orders. What a step has
computed goes to the event loop, where tokens of aborted requests are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import torch

from headway.cost.pass_time import Share
from headway.engine import (
    Computed,
    Drawn,
    EngineInfo,
    EngineStepped,
    PassPlan,
    Preempted,
)
from headway.errors import Code, HeadwayError
from headway.forward_pass import PassItem
from headway.request import FinishReason, Request, SamplingParams, StreamKey, TokenLogprobs
from headway_vllm.drafts import draw_along
from headway_vllm.draws import refusal
from headway_vllm.engine_parts import PlanningParts
from headway_vllm.order import PolicyOrder
from headway_vllm.shim import finish_reason, settle_threads
from services.runtime.logs import get_logger
from services.runtime.watchdog import end_process
from services.worker.engine.grammar import NO_MASKS, Grammars
from services.worker.engine.sampler import draw, problem_of
from services.worker.engine_thread import PassWatch

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_WARM_UP = "warm-up"
_LOSSES = (
    "chunks, blocks and prefix cache are vLLM's; order, preemption and pauses are the policy's",
    "KV neither leaves nor arrives: requests move by their tokens alone",
    "KV of preempted requests is computed again: none goes to host memory",
    "tenants share the window alone: vLLM does not divide the chunk among them",
    "no hidden states: remaining lengths are estimated from counts",
)


class ShownOrder(PolicyOrder):
    """An order that keeps what a step does, by the requests' names."""

    shares: Sequence[tuple[str, int, int]] = ()
    """First token and number of tokens of each request in the step."""

    def begin(self) -> None:
        """Begin a step."""
        self.shares, self.lost = (), list[tuple[str, bool]]()

    def planned(self, counts: Mapping[str, int], starts: Mapping[str, int], *, now: float) -> Share:
        """See ``PolicyOrder.planned``."""
        self.shares = [(name, starts[name], count) for name, count in counts.items()]
        return super().planned(counts, starts, now=now)

    def preempted(self, name: str, *, voluntary: bool, now: float) -> None:
        """See ``PolicyOrder.preempted``."""
        super().preempted(name, voluntary=voluntary, now=now)
        self.lost.append((name, voluntary))


@dataclass(slots=True)
class _Held:
    """A request in vLLM, with its output of all attempts."""

    request: Request
    output: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log probabilities of the last pass's tokens, or none."""
    problem: HeadwayError | None = None
    """The reason why no token could be drawn."""

    def item(self, drawn: Sequence[int] = ()) -> PassItem:
        """Return what drawing the next token needs, behind those that the pass has drawn."""
        request = self.request
        output = [*self.output, *drawn] if drawn else self.output
        start = len(request.prompt_token_ids) + len(output) - 1
        sampling, prompt = request.sampling, request.prompt_token_ids
        return PassItem(request.key, (0,), start, (), True, sampling, prompt, output)


class _Named(Protocol):
    @property
    def key(self) -> StreamKey: ...


_T = TypeVar("_T", bound=_Named)


class NativeEngine:
    """A ``headway.engine.PlanningEngine`` over a vLLM engine in this process."""

    def __init__(
        self,
        parts: PlanningParts,
        info: EngineInfo,
        make_order: Callable[[], ShownOrder],
        grammars: Grammars,
        vocab_size: int,
    ) -> None:
        self.info = info
        self.losses: Sequence[str] = _LOSSES
        self._parts = parts
        self._order = make_order()
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._held: dict[str, _Held] = {}
        self._names: dict[StreamKey, str] = {}  # the event loop's; the others are the thread's
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._passes = PassWatch()
        self._number = self._num_added = 0
        self._stepped: Callable[[EngineStepped], None]
        self._loop: asyncio.AbstractEventLoop
        self._thread: Thread
        self._num_drafts: dict[str, int] = {}  # of the pass, by request
        parts.draw_with(self._draw)
        parts.check_with(self._check)
        self._warm_up()
        self._order = make_order()  # which has not learnt from the warm-up
        parts.follow(self._order)

    # --- the event loop's side --------------------------------------------------------

    def start(self, stepped: Callable[[EngineStepped], None]) -> None:
        """See ``PlanningEngine.start``."""
        self._stepped, self._loop = stepped, asyncio.get_running_loop()
        self._num_added = 0
        self._thread = Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    async def watch(self, least: float) -> None:
        """See ``PlanningEngine.watch``."""
        await self._passes.watch(least)

    def add(self, request: Request, priority: int) -> None:
        """See ``PlanningEngine.add``; the policy orders by itself, without the priority."""
        self._number += 1
        key = request.key
        name = self._names[key] = f"{key.gateway_id}/{key.stream_id}/{self._number}"
        self._orders.put(partial(self._begin, name, request))

    def abort(self, key: StreamKey) -> None:
        """See ``PlanningEngine.abort``."""
        name = self._names.pop(key, None)
        if name is not None:
            self._orders.put(partial(self._end, name))

    def tune(self, gamma: float) -> None:
        """See ``PlanningEngine.tune``."""
        self._orders.put(partial(self._order.policy.tune, gamma))

    async def close(self) -> None:
        """See ``PlanningEngine.close``."""
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join)
        self._names.clear()
        self.release()

    def release(self) -> None:
        """Release vLLM, after the last step."""
        self._grammars.close()
        self._parts.close()

    def _report(
        self,
        pass_time: float,
        ended_at: float,
        num_added: int,
        drawn: Iterable[tuple[str, Drawn]],
        computed: Iterable[tuple[str, Computed]] = (),
        lost: Iterable[tuple[str, Preempted]] = (),
        drafts: tuple[int, int] = (0, 0),
    ) -> None:
        plan = PassPlan(num_added, self._live(computed), self._live(lost))
        live = self._live(drawn)
        for each in live:
            if each.finish_reason is not None:
                del self._names[each.key]
        self._stepped(EngineStepped(pass_time, live, plan, ended_at, *drafts))

    def _live(self, pairs: Iterable[tuple[str, _T]]) -> tuple[_T, ...]:
        """Return what is told of requests that have not been aborted since."""
        return tuple(each for name, each in pairs if self._names.get(each.key) == name)

    # --- the engine's thread ----------------------------------------------------------

    def _serve(self) -> None:
        settle_threads()
        try:
            while self._obey():
                self._step()
            for name in list(self._held):
                self._end(name)
        except Exception as error:  # nothing is known of vLLM's state: others take over
            get_logger().error("vllm_failed", exc_info=error)
            end_process("vllm_failed", error=repr(error))

    def _obey(self) -> bool:
        """Follow the orders that have come, an idle engine the next one; False at the end."""
        while True:
            try:
                order = self._orders.get(block=not self._parts.has_requests)
            except Empty:
                return True
            if order is None:
                return False
            order()

    def _begin(self, name: str, request: Request) -> None:
        tokens = [*request.prompt_token_ids, *request.output_token_ids]
        sampling = request.sampling
        self._num_added += 1
        problem, code = refusal(sampling), Code.INVALID_ARGUMENT
        if not 0 <= min(tokens) <= max(tokens) < self._vocab_size:
            problem, code = "it holds a number that is no token id", Code.INTERNAL
        if problem:
            self._tell(0.0, [(name, _failed(request.key, problem, code))])
            return
        self._held[name] = _Held(request, list(request.output_token_ids))
        self._order.take(name, request, now=time.time())
        eos = () if sampling.ignore_eos else self.info.eos_token_ids
        stops = (*eos, *sampling.stop_token_ids)
        max_tokens = sampling.max_tokens - len(request.output_token_ids)
        self._parts.add(name, tokens, max_tokens, stops, request.cache_salt)

    def _end(self, name: str) -> None:
        if self._held.pop(name, None) is not None:
            self._parts.abort(name)

    def _step(self) -> None:
        started_at, num_added, order = time.perf_counter(), self._num_added, self._order
        outputs = self._compute()
        if outputs is None:
            time.sleep(0.001)  # it waits for something that is not in this thread
            return
        held = {name: each.request.key for name, each in self._held.items()}
        refused = {
            out.request_id: self._num_drafts[out.request_id] + 1 - len(out.new_token_ids)
            for out in outputs
            if out.request_id in self._num_drafts
        }
        computed = [
            (name, Computed(held[name], start, count - refused.get(name, 0)))
            for name, start, count in order.shares
        ]
        num_drafts = sum(self._num_drafts.values())
        drafts = num_drafts, num_drafts - sum(refused.values())
        lost = [(name, Preempted(held[name], is_voluntary)) for name, is_voluntary in order.lost]
        drawn = [(out.request_id, self._take(out.request_id, out)) for out in outputs]
        self._tell(time.perf_counter() - started_at, drawn, num_added, computed, lost, drafts)

    def _tell(
        self,
        pass_time: float,
        drawn: Sequence[tuple[str, Drawn]],
        num_added: int = 0,
        computed: Sequence[tuple[str, Computed]] = (),
        lost: Sequence[tuple[str, Preempted]] = (),
        drafts: tuple[int, int] = (0, 0),
    ) -> None:
        step = (pass_time, time.perf_counter(), num_added, drawn, computed, lost, drafts)
        self._loop.call_soon_threadsafe(self._report, *step)

    def _compute(self) -> Sequence[Any] | None:
        self._order.begin()
        self._num_drafts = {}
        with self._passes.running(Share(batch=len(self._held))):
            outputs = self._parts.step()
            self._passes.took(self._passes.elapsed())
            return outputs

    def _take(self, name: str, output: Any) -> Drawn:
        held = self._held[name]
        tokens, reason = tuple(output.new_token_ids), finish_reason(output)
        if held.problem:
            self._end(name)
            return _failed(held.request.key, held.problem.message, held.problem.code)
        logprobs = tuple(held.logprobs[: len(tokens)])
        held.output += tokens
        if reason:
            del self._held[name]
        stats = output.prefill_stats
        return Drawn(
            held.request.key,
            tokens,
            _REASONS.get(reason, FinishReason.ERROR) if reason else None,
            logprobs,
            stats.num_cached_tokens if stats is not None else 0,
            f"vLLM ended the request: {reason}" if reason not in ("", *_REASONS) else "",
        )

    # --- drawing ----------------------------------------------------------------------

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a token for each row; rows that draw none get any."""
        names = self._parts.request_ids
        tokens = [drawn[0] for drawn in self._draw_along(logits, names, [()] * len(names))]
        return torch.tensor(tokens, dtype=torch.int64, device=logits.device)

    def _check(
        self, logits: torch.Tensor, drafts: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[int]]:
        names = self._parts.request_ids
        counted = zip(names, drafts, strict=True)
        self._num_drafts = {name: len(guesses) for name, guesses in counted if guesses}
        return self._draw_along(logits, names, drafts)

    def _draw_along(
        self, logits: torch.Tensor, names: Sequence[str], drafts: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return the tokens of each request; one that draws none gets any."""
        token_ids: list[list[int]] = [[] for _ in names]
        going = [n for n, name in enumerate(names) if self._parts.draws(name)]
        for n in going:
            self._held[names[n]].logprobs = []

        def draw_rows(places: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
            own = logits if len(rows) == len(logits) else logits[rows]
            return self._draw_rows(own, [(self._held[names[n]], token_ids[n]) for n in places])

        draw_along(drafts, going, draw_rows)
        return [tokens or [0] for tokens in token_ids]

    def _draw_rows(
        self, logits: torch.Tensor, each: Sequence[tuple[_Held, list[int]]]
    ) -> Sequence[int]:
        """Draw a token for each row, behind those that the pass has drawn, and add it to them.

        A row without one fails its request. If tokens were drawn before it, the next pass does.
        """
        items = [held.item(token_ids) for held, token_ids in each]
        future = self._grammars.begin(items)
        with self._passes.waiting():
            masks = NO_MASKS if future is None else future.result()
        drawn = draw(logits, items, self.info.eos_token_ids, masks=masks)
        for (held, token_ids), (token, logprobs) in zip(each, drawn, strict=True):
            if token >= 0:
                token_ids.append(token)
                held.logprobs += [logprobs] if logprobs is not None else []
            elif not token_ids:
                held.problem = problem_of(token, masks.get(held.request.key))
        return [token for token, _ in drawn]

    def _warm_up(self) -> None:
        """Run a prompt and a decoding step, which compile what vLLM compiles late."""
        self._parts.follow(self._order)
        count = min(self.info.block_size, self.info.max_model_len - 2)
        params = SamplingParams(temperature=1.0, num_logprobs=1, max_tokens=2, ignore_eos=True)
        self._begin(_WARM_UP, Request(_WARM_UP, "", (0,) * count, params, 0.0))
        while self._parts.has_requests:
            for output in self._compute() or ():
                self._take(output.request_id, output)


def _failed(key: StreamKey, message: str, code: Code = Code.INTERNAL) -> Drawn:
    return Drawn(key, (), FinishReason.ERROR, message=message, code=code)
