"""A gateway core that is driven by words and answers in words, for scenario files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Delivery,
    Fail,
    GatewayAction,
    GatewayEvent,
    Release,
    SchedulerConnected,
    SchedulerDisconnected,
    Submit,
    WorkerDetached,
    WorkersMissing,
)
from headway.core.gateway.settings import GatewaySettings
from headway.errors import Code
from headway.messages import CancelStream, Lost, Placed, Rejected, StreamFailure, TokenBatch
from headway.request import FinishReason, Request, SamplingParams, StreamKey
from tests.fakes.scenarios import words_of


class GatewayScenario:
    """Runs the commands of one file. Time stands still but for ``wait``."""

    def __init__(self) -> None:
        self.core = GatewayCore("g", "g:1", GatewaySettings(max_model_len=100))
        self.now = 0.0

    def run(self, line: str) -> str:
        """Run one command; return its actions, one a line."""
        name, words, options = words_of(line)
        command: Callable[..., list[str]] = getattr(self, f"do_{name}")
        return "\n".join(command(*words, **options))

    def tell(self, event: GatewayEvent) -> list[str]:
        """Hand the core an event; return its actions in words."""
        return [text for a in self.core.handle(event, now=self.now) for text in show(a)]

    # --- clients ----------------------------------------------------------------------

    def do_settings(self, pace: str = "", end: str = "", **limits: str) -> list[str]:
        """``pace``: seconds a reader takes for a token; ``end``: the token that ends reasoning."""
        more: dict[str, Any] = {
            name: int(value) if value.isdecimal() else float(value)
            for name, value in limits.items()
        }
        if pace:
            more |= {"pacing": "token-pacer", "pacing_params": {"tpot": float(pace)}}
        if end:
            more["end_of_reasoning"] = (int(end),)
        self.core = GatewayCore("g", "g:1", GatewaySettings(**{"max_model_len": 100, **more}))
        return []

    def do_ask(
        self,
        name: str,
        prompt: str = "4",
        max: str = "10",
        reasons: str = "",
        read: str = "yes",
        cut: str = "",
    ) -> list[str]:
        sampling = SamplingParams(max_tokens=int(max))
        tokens = tuple(range(int(prompt)))
        request = Request(name, "m", tokens, sampling, self.now, reasons=bool(reasons))
        return self.tell(Submit(request, read == "yes", may_be_cut=bool(cut)))

    def do_leave(self, name: str) -> list[str]:
        return self.tell(Release(name))

    # --- the scheduler ----------------------------------------------------------------

    def do_connect(self) -> list[str]:
        return self.tell(SchedulerConnected())

    def do_disconnect(self) -> list[str]:
        return self.tell(SchedulerDisconnected())

    def do_lacks(self, *reason: str) -> list[str]:
        """Workers that could serve the model are missing; without a reason, all are there."""
        return self.tell(WorkersMissing({"m": " ".join(reason)} if reason else {}))

    def do_placed(self, stream_id: str, worker_id: str, target: str = "") -> list[str]:
        return self.tell(Placed(key(stream_id), worker_id, 0, Role.UNIFIED, target))

    def do_lost(self, *words: str) -> list[str]:
        """Stream ids, then the reason."""
        *stream_ids, reason = words
        return self.tell(Lost(tuple(key(word) for word in stream_ids), reason))

    def do_rejected(self, stream_id: str, code: str, retry: str = "0") -> list[str]:
        return self.tell(Rejected(key(stream_id), Code(code), "no room", float(retry)))

    # --- workers ----------------------------------------------------------------------

    def do_tokens(
        self, worker_id: str, stream_id: str, first: str, *token_ids: str, end: str = ""
    ) -> list[str]:
        """Bring tokens from index ``first`` on; ``end`` comes with the last of them."""
        count = len(token_ids)
        reasons: list[FinishReason | None] = [None] * count
        if end:
            reasons[-1] = FinishReason(end)
        indices = range(int(first), int(first) + count)
        tokens = [int(token_id) for token_id in token_ids]
        streams = [int(stream_id)] * count
        return self.tell(TokenBatch(worker_id, streams, indices, tokens, reasons, {}))

    def do_failed(
        self, worker_id: str, stream_id: str, reason: str = "error", code: str = "internal"
    ) -> list[str]:
        why = (FinishReason(reason), "the pass failed", Code(code))
        failure = StreamFailure(int(stream_id), *why)
        return self.tell(TokenBatch(worker_id, [], [], [], [], {}, [failure]))

    def do_detached(self, worker_id: str) -> list[str]:
        return self.tell(WorkerDetached(worker_id))

    # --- time -------------------------------------------------------------------------

    def do_wait(self, seconds: str) -> list[str]:
        """Let time pass; the core is woken whenever it asked for it."""
        said: list[str] = []
        until = self.now + float(seconds)
        for _ in range(1000):
            wakeup = self.core.next_wakeup
            if wakeup is None or wakeup > until + 1e-9:
                self.now = until
                return said
            self.now = max(self.now, wakeup)
            actions = self.core.wake(now=self.now)
            said += [f"{self.now:.2f} s: {text}" for a in actions for text in show(a)]
        raise AssertionError("the core asks to be woken without end")


def key(stream_id: str) -> StreamKey:
    return StreamKey("g", int(stream_id))


def show(action: GatewayAction) -> list[str]:
    """Say an action in words, a line each."""
    match action:
        case Request():
            behind = f", behind {_said(action.output_token_ids)}" if action.output_token_ids else ""
            name = f"{action.request_id}, stream {action.stream_id}, attempt {action.attempt}"
            return [f"scheduler <- {name}{behind}"]
        case CancelStream(stream):
            return [f"scheduler <- cancel {stream.stream_id}"]
        case CancelTokens(worker_id, stream_ids):
            return [f"{worker_id} <- cancel {_said(stream_ids)}"]
        case Fail(request_id, error):
            hint = f" (retry after {error.retry_after:g} s)" if error.retry_after else ""
            param = f" ({error.param})" if error.param else ""
            return [f"{request_id} fails, {error.code.value}{param}: {error.message}{hint}"]
        case Deliver():
            assert action.deliveries or action.pauses, "it says nothing"
            pauses = [f"a pause of {p.seconds:g} s, {p.num_tokens:g} tokens" for p in action.pauses]
            streams = groupby(action.deliveries, key=lambda one: one.request_id)
            return pauses + [_reads(name, list(found)) for name, found in streams]


def _reads(name: str, deliveries: list[Delivery]) -> str:
    tokens = [one.token_id for one in deliveries if one.token_id is not None]
    end = deliveries[-1].finish_reason
    reads = f" reads {_said(tokens)}" if tokens else ""
    cut = ", cut" if deliveries[-1].is_cut else ""
    return f"{name}{reads}{f', end: {end.value}' if end else ''}{cut}"


def _said(numbers: Sequence[int]) -> str:
    return " ".join(str(number) for number in numbers)
