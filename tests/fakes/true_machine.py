"""A machine whose costs are known: a simulated cluster whose passes vary, and are recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import exp
from typing import Any

import pytest

from headway.cost.fit import MeasuredPass
from headway.cost.pass_time import PassTime, Share
from headway.cost.profile import Profile
from headway.forward_pass import ForwardPass
from headway.sim import worker as sim_worker
from headway.sim.device import Device
from headway.sim.hop_costs import HopCosts
from headway.sim.pace import MeasuredPace
from headway.workload.traces import TraceRow
from planning.profile.calibration import Calibration, Fitted
from planning.profile.figures import Load
from planning.profile.model import WorkerRecord
from planning.profile.predict import predict
from services.local.options import WorkerCounts
from services.worker.pass_record import share_of

TRUTH = PassTime(
    base=0.0024,
    per_prefill_token=5e-5,
    per_request=1.5e-4,
    per_kv_token=3e-7,
    per_prefill_context=1.28e-7,
)
"""About what a small model takes on one core."""
WORKER: dict[str, Any] = {
    "worker_id": "unified-1",
    "model": "m",
    "chunk_tokens": 512,
    "block_size": 16,
    "num_blocks": 8192,
    "max_model_len": 2048,
    "kv_bytes_per_token": 3072,
    "role": "unified",
}
HOPS = HopCosts(gateway=0.001, submit=0.0005, dispatch=0.0005, report=0.0005, token=0.0005)
EVEN = MeasuredPace([1.0], [1.0])
"""Every pass takes its mean."""
SPREAD_OF_A_PASS = 0.18
"""Of a log-normal factor on each pass: half of all passes are off by 12 % or more."""


class Uneven(MeasuredPace):
    """Passes of independent times, 1 on the mean."""

    def replay(self, at: float = 0.0) -> Callable[[float], float]:
        rng, sigma = random.Random(self.start + at), SPREAD_OF_A_PASS
        return lambda work: work * exp(rng.gauss(-sigma * sigma / 2, sigma))


def calibration(
    pass_time: PassTime = TRUTH, pace: MeasuredPace = EVEN, fitted: Fitted | None = None
) -> Calibration:
    """A machine of these costs."""
    profile = Profile(
        name="truth",
        model="m",
        device="none",
        dtype="none",
        parallelism="none",
        origin="a test",
        pass_time=pass_time,
        kv_bytes_per_token=WORKER["kv_bytes_per_token"],
        kv_capacity_tokens=WORKER["num_blocks"] * WORKER["block_size"],
        chunk_tokens=WORKER["chunk_tokens"],
        block_size=WORKER["block_size"],
    )
    fitted = fitted or Fitted(0, 0.0, 0.0, {}, Share(512, 1 << 20, 64, 1 << 16))
    return Calibration(profile, HOPS, 0.0005, WORKER["max_model_len"], fitted, pace)


def asked(
    rows: Sequence[TraceRow], monkeypatch: pytest.MonkeyPatch, seed: int = 0
) -> tuple[Load, WorkerRecord]:
    """Ask the machine a load: what clients see, and what its worker records."""
    passes: list[MeasuredPass] = []
    pace = Uneven([1.0], [1.0], start=seed / 1000)
    with monkeypatch.context() as patched:
        patched.setattr(sim_worker, "Device", _recording(passes))
        machine = calibration(pace=pace)
        found = predict(machine, "vllm-like", WorkerCounts(0, 0, unified=1), rows, num_replays=1)
    began_at = [float(number) for number in range(len(passes))]
    return found.loads[0], WorkerRecord(WORKER, passes, began_at)


def _recording(passes: list[MeasuredPass]) -> type[Device]:
    class Recording(Device):
        """Writes down what it runs, as a live worker does."""

        def __init__(self, *args: Any) -> None:
            *others, pace = args
            super().__init__(*(*others, lambda *work: self._noted(pace(*work))))
            self._asked: list[ForwardPass] = []

        def start(self, forward_pass: ForwardPass) -> None:
            self._asked.append(forward_pass)
            super().start(forward_pass)

        def _noted(self, seconds: float) -> float:
            items = [(item.start, len(item.token_ids)) for item in self._asked[-1].items]
            passes.append(MeasuredPass(share_of(items), seconds))
            return seconds

    return Recording
