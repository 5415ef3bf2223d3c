"""Worker scenarios as text: what happens, what the worker does about it, and where requests stand.

Each file of ``worker/`` is a list of steps: one command a line, ``----``, then the actions that
follow and the stages that have changed, up to an empty line. After an intended change of behaviour
run with ``HEADWAY_REWRITE_SCENARIOS=1`` and read the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cluster import Role
from headway.core.worker.events import (
    PassFailed,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    WorkerAction,
)
from headway.forward_pass import ForwardPass, PassItem
from headway.messages import (
    CancelStream,
    ChangeRole,
    Drain,
    EndForward,
    GiveBack,
    HandedBack,
    Handoff,
    HandoffResult,
    Snapshot,
)
from headway.policies.batching.fcfs import Fcfs
from headway.request import StreamKey
from tests.fakes.paged import WorkerHarness, break_off, transfer
from tests.fakes.scenarios import check, words_of
from tests.fakes.worker_core import dispatch, make_request, make_worker

FILES = sorted((Path(__file__).parent / "worker").glob("*.txt"))


class Scenario:
    """Runs the commands of one file; ``name=value`` words are options of a command."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerHarness] = {}
        self.stages: dict[tuple[str, int], str] = {}
        self.num_dispatches = 0
        self.before: dict[str, int] = {}

    def note(self) -> None:
        """Show only actions that follow."""
        self.before = {worker_id: len(worker.log) for worker_id, worker in self.workers.items()}

    def run(self, line: str) -> str:
        name, words, options = words_of(line)
        self.note()
        command: Callable[[list[str], dict[str, int]], None] = getattr(self, f"do_{name}")
        command(words, {option: int(value) for option, value in options.items()})
        shown = [
            f"{worker_id}: {text}"
            for worker_id, worker in self.workers.items()
            for action in worker.log[self.before.get(worker_id, 0) :]
            if (text := show(action))
        ]
        return "\n".join(shown + self.changed_stages())

    def changed_stages(self) -> list[str]:
        now = {
            (worker_id, key.stream_id): sequence.stage.name.lower().replace("_", " ")
            for worker_id, worker in self.workers.items()
            for unit in worker.core.units
            for key, sequence in unit.sequences.items()
        }
        places = sorted({*now, *self.stages})
        changes = [
            f"{number} on {worker_id}: {before} -> {after}"
            for worker_id, number in places
            if (before := self.stages.get((worker_id, number), "new"))
            != (after := now.get((worker_id, number), "gone"))
        ]
        self.stages = now
        return changes

    # --- commands ---------------------------------------------------------------------

    def do_worker(self, words: list[str], options: dict[str, int]) -> None:
        worker_id, role = words
        self.workers[worker_id] = make_worker(
            Role(role),
            blocks=options.get("blocks", 32),
            batching=Fcfs(),
            watermark=0.0,
            host_tokens=options.get("host", 0),
            move_rounds=options.get("rounds", 0),
            swaps_beside=bool(options.get("beside", 0)),
        )

    def do_submit(self, words: list[str], options: dict[str, int]) -> None:
        self.num_dispatches += 1
        prompt, most = options.get("prompt", 6), options.get("max", 3)
        requests = [make_request(int(word), prompt, max_tokens=most) for word in words[1:]]
        self.workers[words[0]].post(dispatch(*requests, dispatch_id=self.num_dispatches))

    def do_pass(self, words: list[str], options: dict[str, int]) -> None:
        """Run so many passes, and show the last."""
        for _ in range(options.get("times", 1)):
            self.note()
            assert self.workers[words[0]].run_pass(), "no pass is in flight"

    def do_fail(self, words: list[str], options: dict[str, int]) -> None:
        worker = self.workers[words[0]]
        keys = tuple(key(word) for word in words[1:])
        worker.post(PassFailed(worker.passes.popleft().pass_id, keys, "out of memory"))

    def do_cancel(self, words: list[str], options: dict[str, int]) -> None:
        self.workers[words[0]].post(CancelStream(key(words[1])))

    def do_hand(self, words: list[str], options: dict[str, int]) -> None:
        source, number, target = words
        self.workers[source].post(Handoff(key(number), target, f"{target}:1", 0, 1))

    def do_send(self, words: list[str], options: dict[str, int]) -> None:
        transfer(self.workers[words[0]], self.workers[words[1]])

    def do_break(self, words: list[str], options: dict[str, int]) -> None:
        source, target = (self.workers[word] for word in words)
        break_off(source, target, source.transfers[-1])
        source.transfers.clear()

    def do_drain(self, words: list[str], options: dict[str, int]) -> None:
        self.workers[words[0]].post(Drain())

    def do_role(self, words: list[str], options: dict[str, int]) -> None:
        self.workers[words[0]].post(ChangeRole(Role(words[1])))

    def do_give_back(self, words: list[str], options: dict[str, int]) -> None:
        self.workers[words[0]].post(GiveBack(tuple(key(word) for word in words[1:])))


def key(word: str) -> StreamKey:
    return StreamKey("g", int(word))


def show(action: WorkerAction) -> str:
    """Return what the action says of requests, or nothing."""
    if isinstance(action, ForwardPass):
        swaps = [f"{s.key.stream_id} to host memory" for s in action.swapped_out]
        swaps += [f"{s.key.stream_id} from host memory" for s in action.swapped_in]
        return f"pass over {', '.join([*map(part, action.items), *swaps])}"
    if isinstance(action, SendTokens):
        batch = action.batch
        rows = zip(batch.stream_ids, batch.indices, batch.finish_reasons, strict=True)
        tokens = [f"{n}[{i}]{f' ({why.value})' if why else ''}" for n, i, why in rows]
        tokens += [f"{f.stream_id} failed ({f.message})" for f in batch.failures]
        return f"tokens {', '.join(tokens)}"
    if isinstance(action, EndForward):
        news = [f"{h.key.stream_id} can move" for h in action.prefilled]
        news += [f"{f.key.stream_id} has ended ({f.finish_reason.value})" for f in action.finished]
        return f"report {', '.join(news)}" if news else ""
    if isinstance(action, StartTransfer):
        place = "host memory" if action.host_blocks else "blocks"
        span = f"{action.first_token} to {action.num_computed_tokens - 1}"
        more = ", more follows" if action.more else ""
        return f"send KV {span} of {action.request.stream_id} from {place}{more}"
    if isinstance(action, StopTransfer):
        return f"stop sending {action.key.stream_id}"
    if isinstance(action, RefuseKv):
        return f"refuse {action.key.stream_id}: {action.error.message}"
    return show_answer(action)


def show_answer(action: WorkerAction) -> str:
    if isinstance(action, HandoffResult):
        outcome = "has it" if action.ok else "does not have it"
        again = ", try again" if action.retriable and not action.ok else ""
        who = f"{action.target_worker_id} {outcome}{again}: {action.key.stream_id}"
        return f"{who} {action.message}".strip()
    if isinstance(action, HandedBack):
        return f"hand back {', '.join(str(k.stream_id) for k in action.keys) or 'nothing'}"
    if isinstance(action, Snapshot):
        held = ", ".join(str(h.key.stream_id) for h in action.held) or "nothing"
        return f"snapshot: {action.info.role.value} holds {held}"
    return ""


def part(item: PassItem) -> str:
    stop = item.start + len(item.token_ids)
    span = f"{item.start} to {stop - 1}" if stop > item.start + 1 else str(item.start)
    return f"{item.key.stream_id} at {span}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Scenario().run)
