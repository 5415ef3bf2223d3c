"""The predictor's and the autoscaler's processes; no request waits for either."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from headway.core.autoscaler.budget import Budget
from headway.core.autoscaler.core import AutoscalerCore, role_changes
from headway.core.autoscaler.events import (
    ROLES,
    AutoscalerEvent,
    OrderedReport,
    PublishTargets,
)
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.core.predictor.core import Observed, PredictorCore
from proof.vopr.network import End, Packed, parsed
from proof.vopr.process import SimulatedDriver, SimulatedProcess
from proof.vopr.world import MODEL, World
from services.runtime import wire

_INTERVAL = 1.0


class PredictorProcess(SimulatedProcess):
    """Answers questions about remaining lengths, and learns from finished requests."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        super().__init__(world.kernel, name, skew)
        self.core = PredictorCore()
        self._driver: SimulatedDriver[Observed, None] = SimulatedDriver(
            self, self.core, lambda _: None
        )
        world.network.listen(self, "Predict", self._serve)

    def _serve(self, stream: End) -> None:
        stream.on_message = lambda message: self._answer(stream, message)

    def _answer(self, stream: End, message: Packed) -> None:
        question = wire.unpack_question(parsed(message))
        counts = question.seen.num_output_tokens
        self._driver.post(Observed(MODEL, question.seen.num_prompt_tokens, counts))
        expected = max(self.core.table(MODEL).means)
        remaining = [max(0.0, expected - count) for count in counts]
        stream.send((bytes, struct.pack(f"<{len(remaining)}d", *remaining)))
        stream.close("answered")


class AutoscalerProcess(SimulatedProcess):
    """An autoscaler's life: it decides how many workers there should be; its operator acts."""

    def __init__(self, world: World, name: str, skew: float, operator: Operator) -> None:
        super().__init__(world.kernel, name, skew)
        self._world = world
        self._operator = operator
        policy = world.policies.scaling.make()
        self._scales = type(policy).scales
        self.core = AutoscalerCore(
            policy,
            now=self.now(),
            settings=AutoscalerSettings(
                _INTERVAL, budget=Budget(num_instances=operator.most), model=MODEL
            ),
        )
        self._newest: PublishTargets | None = None
        self._driver: SimulatedDriver[AutoscalerEvent, PublishTargets] = SimulatedDriver(
            self, self.core, self._decided
        )
        self._driver.post(self._ordered())
        world.network.listen(self, "ReportRates", self._serve(wire.RATE_REPORT.unpack))
        world.network.listen(self, "ReportFleet", self._serve(wire.unpack_fleet))
        self.after(_INTERVAL, self._steer)

    def _serve(self, unpack: Callable[[Any], AutoscalerEvent]) -> Callable[[End], None]:
        def take(message: Packed) -> None:
            self._driver.post(unpack(parsed(message)))

        def serve(stream: End) -> None:
            stream.on_message = take

        return serve

    def _ordered(self) -> OrderedReport:
        found = self._operator.ordered()
        return OrderedReport(**{f"num_{role}": found.get(role, 0) for role in ROLES})

    def _decided(self, decided: PublishTargets) -> None:
        self._newest = decided

    def _steer(self) -> None:
        self.after(_INTERVAL, self._steer)
        self._driver.post(self._ordered())
        if self._newest is None or not self._scales:
            return
        found = dict(self._operator.ordered())
        targets = self._newest.targets
        wanted = {role: getattr(targets, f"num_{role}") for role in found}
        for source, target, number in role_changes(found, wanted):
            self._world.hit("the autoscaler changes a role")
            self._operator.change_role(source, target, number)
        for role, number in wanted.items():
            if number != self._operator.ordered().get(role, 0):
                self._world.hit("the autoscaler scales")
                self._operator.scale(role, number)


class Operator:
    """The hands of an actuator on a cluster."""

    most: int
    """Most workers."""

    def ordered(self) -> Mapping[str, int]:
        """Return the ordered workers by role."""
        raise NotImplementedError

    def scale(self, role: str, number: int) -> None:
        """Start or drain workers of a role until so many are left."""
        raise NotImplementedError

    def change_role(self, source: str, target: str, number: int) -> None:
        """Give workers of a role another one."""
        raise NotImplementedError
