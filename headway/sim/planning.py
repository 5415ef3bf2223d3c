"""Simulated engines that plan their own passes, below the live core of their workers.

The engine's plans are those of a worker's core of its own: chunks, blocks, prefix cache and
preemption, by a batching policy. An engine that is ``native`` orders by the preset's policy and
shows its plans. An ``endpoint`` serves first come, first served, and shows none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from headway.blocks import BlockHash
from headway.cluster import WorkerInfo
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import (
    EngineAbort,
    EngineAdd,
    EngineTune,
    WorkerAction,
    WorkerEvent,
)
from headway.core.worker.settings import WorkerSettings
from headway.engine import Computed, Drawn, EngineStepped, PassPlan, Preempted
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import CancelStream, Dispatch, Tuned, UnitBatch
from headway.policies.batching import Batching
from headway.policies.batching.fcfs import Fcfs
from headway.request import Request, StreamKey
from headway.sim.kernel import Kernel
from headway.sim.lengths import EOS, TrueLengths
from headway.sim.node import Node

HEADWAY, NATIVE, ENDPOINT = "headway", "native", "endpoint"
PLANNERS = (HEADWAY, NATIVE, ENDPOINT)
"""Planners of an instance's passes: Headway, the engine in a policy's order, or it alone."""

EngineOrder = EngineAdd | EngineAbort | EngineTune


class Runs(Protocol):
    """An engine, as its planner starts its passes."""

    def start(self, forward_pass: ForwardPass) -> None:
        """Begin a pass."""


class SimPlanner:
    """An engine that queues, orders and preempts by itself, as ``headway.engine.PlanningEngine``.

    ``device`` computes its passes. ``stepped`` takes the report of each that ``ended``.
    """

    def __init__(
        self,
        kernel: Kernel,
        info: WorkerInfo,
        batching: Batching,
        settings: WorkerSettings,
        lengths: Mapping[StreamKey, TrueLengths],
        hashes_of: Callable[[Request], Sequence[BlockHash]],
        stepped: Callable[[EngineStepped], None],
        *,
        shows_plans: bool,
    ) -> None:
        self.device: Runs
        self._shows_plans = shows_plans
        self._stepped = stepped
        self._core = WorkerCore(
            info,
            (EOS,),
            batching if shows_plans else Fcfs(),
            planner_settings(settings),
            lambda key: lengths[key].num_output_tokens,
            hashes_of=hashes_of,
        )
        self._node: Node[WorkerEvent, WorkerAction] = Node(kernel, self._core, self._perform)
        self._num_added = 0
        self._running: ForwardPass | None = None
        self._plan: PassPlan | None = None
        self._losses: dict[StreamKey, tuple[int, int]] = {}
        """Preemptions that each request has had, and how many of them were voluntary."""

    def follow(self, order: EngineOrder) -> None:
        """Take a request in, stop one, or learn γ."""
        match order:
            case EngineAdd(request):
                self._num_added += 1
                self._node.post(Dispatch(self._num_added, (UnitBatch(0, (request,)),)))
            case EngineAbort(key):
                self._losses.pop(key, None)
                self._node.post(CancelStream(key))
            case EngineTune(gamma):
                self._node.post(Tuned(gamma))

    def ended(self, result: PassResult) -> None:
        """Report a pass, and go on with the next one."""
        plan, drawn = self._plan, tuple(Drawn(s.key, (s.token_id,)) for s in result.sampled)
        self._node.post(result)
        self._stepped(EngineStepped(result.pass_time, drawn, plan))

    def stop(self) -> None:
        """Stop it."""
        self._node.stop()

    def _perform(self, action: WorkerAction) -> None:
        """Compute what it plans; its worker's core reports the rest in its own words."""
        if isinstance(action, ForwardPass):
            self._plan = self._pass_plan(action) if self._shows_plans else None
            self.device.start(action)

    def _pass_plan(self, forward_pass: ForwardPass) -> PassPlan:
        computed = [Computed(i.key, i.start, len(i.token_ids)) for i in forward_pass.items]
        return PassPlan(self._num_added, tuple(computed), tuple(self._take_losses()))

    def _take_losses(self) -> Sequence[Preempted]:
        """Return who has lost its KV since the last pass."""
        sequences = self._core.units[0].sequences
        before = self._losses
        now = {
            key: (each.num_preemptions, each.num_voluntary)
            for key, each in sequences.items()
            if each.num_preemptions
        }
        self._losses = now
        none = (0, 0)
        return [
            Preempted(key, counts[1] > before.get(key, none)[1])
            for key, counts in now.items()
            if counts[0] > before.get(key, none)[0]
        ]


def planner_settings(settings: WorkerSettings) -> WorkerSettings:
    """Return an engine's own: each step by itself, no KV in host memory, nothing for top-ups."""
    return replace(
        settings, max_steps=1, linger=0.0, host_tokens=0, predict_every=0, tells_lives=False
    )
