"""Scheduler scenarios as text: what happens, and what the scheduler does about it.

Each file of ``scheduler/`` is a list of steps: one command a line, ``----``, then the actions that
follow, up to an empty line. Time stands still but for ``wait``. After an intended change of
behaviour run with ``HEADWAY_REWRITE_SCENARIOS=1`` and read the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cluster import Role
from headway.core.scheduler.events import (
    Decision,
    Elected,
    GatewayConnected,
    GatewayDisconnected,
    Note,
    SchedulerAction,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import (
    CancelStream,
    Dispatch,
    EndForward,
    FinishedRequest,
    GiveBack,
    Handoff,
    HandoffResult,
    HeldRequest,
    Lost,
    Order,
    Placed,
    Rejected,
    ToGateway,
    Tuned,
)
from headway.policies.packing.flow_control import FlowControl
from headway.request import FinishReason
from tests.fakes.scenarios import check, words_of
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info

FILES = sorted((Path(__file__).parent / "scheduler").glob("*.txt"))


class Scenario:
    """Runs the commands of one file; ``name=value`` words are options of a command."""

    def __init__(self) -> None:
        self.scheduler = SchedulerHarness(elect=False)
        self.epoch = self.scheduler.now

    def run(self, line: str) -> str:
        name, plain, options = words_of(line)
        command: Callable[[list[str], dict[str, str]], None] = getattr(self, f"do_{name}")
        self.scheduler.new = []
        before = len(self.scheduler.log)
        command(plain, options)
        shown = [text for a in self.scheduler.log[before:] if (text := self.show(a))]
        return "\n".join(shown)

    # --- commands ---------------------------------------------------------------------

    def do_settings(self, words: list[str], options: dict[str, str]) -> None:
        settings = SchedulerSettings(
            dispatch_params={"default_pass_time": float(options.pop("pass_time", "0.1"))},
            placement=options.pop("placement", "iqr-lex"),
            flow_control=FlowControl(int(options.pop("cycles", "500"))),
            max_waiting=int(options.pop("max_waiting", "4096")),
            kv_watermark=float(options.pop("watermark", "0.01")),
        )
        assert not options, f"unknown settings: {options}"
        self.scheduler = SchedulerHarness(settings, elect=False)

    def do_elect(self, words: list[str], options: dict[str, str]) -> None:
        self.scheduler.post(Elected(int(options.get("token", "1")), tuple(words)))

    def do_gateway(self, words: list[str], options: dict[str, str]) -> None:
        self.scheduler.post(GatewayConnected(words[0]))

    def do_gateway_gone(self, words: list[str], options: dict[str, str]) -> None:
        self.scheduler.post(GatewayDisconnected(words[0]))

    def do_connect(self, words: list[str], options: dict[str, str]) -> None:
        worker_id, role, *held = words
        shape = {name: int(value) for name, value in options.items()}
        info = make_info(worker_id, Role(role), **shape)  # type: ignore[arg-type]  # counts by name
        self.scheduler.connect(info, *(self.held(word) for word in held))

    def do_submit(self, words: list[str], options: dict[str, str]) -> None:
        patience = options.get("deadline")
        for word in words:
            self.scheduler.submit(
                int(word),
                int(options.get("tokens", "10")),
                max_tokens=int(options.get("max", "5")),
                attempt=int(options.get("attempt", "0")),
                request_id=options.get("request", f"r{word}"),
                reasons="reasons" in options,
                deadline_at=self.scheduler.now + float(patience or "inf"),
            )

    def do_cancel(self, words: list[str], options: dict[str, str]) -> None:
        self.scheduler.post(CancelStream(key(int(words[0]))))

    def do_accept(self, words: list[str], options: dict[str, str]) -> None:
        self.scheduler.accept(words[0])

    def do_end(self, words: list[str], options: dict[str, str]) -> None:
        worker_id = words[0]
        prefilled = tuple(self.held(w) for w in options.get("prefilled", "").split(",") if w)
        ends = tuple(int(w) for w in options.get("finished", "").split(",") if w)
        dispatches = options.get("dispatch")
        self.scheduler.end_forward(
            worker_id,
            pass_time=float(options.get("time", "0.1")),
            dispatch_ids=None
            if dispatches is None
            else tuple(1 << 32 | int(w) for w in dispatches.split(",") if w != "none"),
            queued=int(options.get("queued", "0")),
            running=int(options.get("running", "0")),
            free=int(options["free"]) if "free" in options else None,
            prefilled=prefilled,
            finished=ends,
            yielding=(int(options.get("passed", "0")), int(options.get("yielding", "0"))),
        )

    def do_stopped(self, words: list[str], options: dict[str, str]) -> None:
        worker_id, stream_id = words
        end = FinishedRequest(key(int(stream_id)), 0, 10, 1, FinishReason.CANCELLED)
        report = EndForward(1, 0.0, (), (), (), (end,))
        self.scheduler.post(WorkerReported(worker_id, report))

    def do_moved(self, words: list[str], options: dict[str, str]) -> None:
        source, stream_id, target, outcome = words
        result = HandoffResult(
            key(int(stream_id)), target, 0, outcome == "ok", outcome != "gone", outcome
        )
        self.scheduler.post(WorkerReported(source, result))

    def do_kill(self, words: list[str], options: dict[str, str]) -> None:
        self.scheduler.post(WorkerGone(words[0], f"worker {words[0]} is gone"))

    def do_wait(self, words: list[str], options: dict[str, str]) -> None:
        self.scheduler.wait(float(words[0]))

    @staticmethod
    def held(word: str) -> HeldRequest:
        """``5`` or ``5:12``, stream id and tokens; ``+`` behind it: awaiting a handoff."""
        stream_id, _, tokens = word.rstrip("+").partition(":")
        awaiting = word.endswith("+")
        return HeldRequest(key(int(stream_id)), f"r{stream_id}", 0, int(tokens or "11"), awaiting)

    # --- actions ----------------------------------------------------------------------

    def show(self, action: SchedulerAction) -> str:
        if isinstance(action, SendToWorker):
            return f"{action.worker_id} <- {self.order(action.message)}"
        if isinstance(action, SendToGateway):
            return f"{action.gateway_id} <- {self.answer(action.message)}"
        if isinstance(action, Note):
            return f"note {action.event} {action.worker_id} {action.detail}".replace("  ", " ")
        if isinstance(action, Decision) and action.question == "dispatch":
            left = f", {action.num_left} left" if action.num_left else ""
            return f"because {action.rule}{left}"
        return ""

    @staticmethod
    def order(order: Order) -> str:
        if isinstance(order, Dispatch):
            token, number = order.dispatch_id >> 32, order.dispatch_id & 0xFFFFFFFF
            units = ", ".join(
                f"unit {b.unit}: {' '.join(str(r.stream_id) for r in b.requests)}"
                for b in order.batches
            )
            return f"dispatch {token}.{number}, {units}"
        if isinstance(order, Handoff):
            target = f"{order.target_worker_id}/{order.target_unit}"
            return f"hand {order.key.stream_id} to {target}"
        if isinstance(order, Tuned):
            return f"tuned to {order.gamma:g}"
        if isinstance(order, GiveBack):
            return f"give back {' '.join(str(k.stream_id) for k in order.keys)}"
        assert isinstance(order, CancelStream)
        return f"cancel {order.key.stream_id}"

    @staticmethod
    def answer(answer: ToGateway) -> str:
        if isinstance(answer, Placed):
            moving = f", moving to {answer.target_worker_id}" if answer.target_worker_id else ""
            return f"{answer.key.stream_id} is on {answer.worker_id}/{answer.unit}{moving}"
        if isinstance(answer, Rejected):
            hint = f" (retry after {answer.retry_after:g} s)" if answer.retry_after else ""
            return f"{answer.key.stream_id} refused, {answer.code.value}: {answer.message}{hint}"
        assert isinstance(answer, Lost), "no worker of a scenario names its process"
        return f"lost {' '.join(str(k.stream_id) for k in answer.keys)}: {answer.reason}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Scenario().run)
