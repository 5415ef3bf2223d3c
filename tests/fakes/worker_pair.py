"""Two workers that send each other requests, whatever a test draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hypothesis import strategies as st

from headway.cluster import Role
from headway.messages import CancelStream, ChangeRole, GiveBack, Handoff
from headway.policies.batching.fcfs import Fcfs
from headway.request import StreamKey
from tests.fakes.paged import WorkerHarness, break_off, transfer
from tests.fakes.worker_core import dispatch, make_request, make_worker

Step = tuple[str, int, int]


def steps(*more: str) -> st.SearchStrategy[Step]:
    """Return what may happen, on which worker, and to which of its requests; ``more``: oftener."""
    often = ["submit", "pass", "pass", "pass", "hand", "send"] * 2
    names = [*often, *more, "fail", "cancel", "break", "role", "give back"]
    return st.tuples(st.sampled_from(names), st.integers(0, 1), st.integers(0, 7))


class WorkerPair(ABC):
    """``gone``: requests that were taken from a worker."""

    def __init__(self, **settings: Any) -> None:
        self.workers = [make_worker(batching=Fcfs(), watermark=0.0, **settings) for _ in range(2)]
        self.num_submitted = 0
        self.gone: set[int] = set()

    def step(self, name: str, place: int, which: int) -> None:
        worker, other = self.workers[place], self.workers[1 - place]
        held = [key for unit in worker.core.units for key in unit.sequences]
        key = held[which % len(held)] if held else StreamKey("g", 99)
        if name == "submit":
            self.num_submitted += 1
            self.submit(worker, which)
        elif name == "pass":
            worker.run_pass()
        elif name == "fail" and worker.passes:
            self.fail(worker, which)
        elif name == "cancel":
            self.gone.add(key.stream_id)
            worker.post(CancelStream(key))
        elif name == "hand":
            worker.post(Handoff(key, "other", "other:1", 0, 1))
        elif name == "send" and worker.transfers:
            self.send(worker, other)
        elif name == "break" and worker.transfers:
            break_off(worker, other, worker.transfers.popleft())
        elif name == "role":
            worker.post(ChangeRole((Role.PREFILL, Role.UNIFIED, Role.CONVERTIBLE)[which % 3]))
        elif name == "give back":
            self.gone.add(key.stream_id)
            worker.post(GiveBack((key,)))

    def submit(self, worker: WorkerHarness, which: int) -> None:
        request = make_request(self.num_submitted, 3 + which, max_tokens=9)
        worker.post(dispatch(request, dispatch_id=self.num_submitted))

    def send(self, worker: WorkerHarness, other: WorkerHarness) -> None:
        transfer(worker, other)

    @abstractmethod
    def fail(self, worker: WorkerHarness, which: int) -> None:
        """Fail the oldest pass of a worker, which has one."""
