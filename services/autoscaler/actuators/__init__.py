"""Actuators, which start and stop instances to meet the targets. One file for each kind."""

from __future__ import annotations

from services.autoscaler.actuators.protocol import Actuator
from services.autoscaler.config import AutoscalerConfig
from services.runtime.store import Store

__all__ = ["Actuator", "make_actuator"]


def make_actuator(config: AutoscalerConfig, store: Store) -> Actuator:
    """Return the configured actuator; import only what that one needs."""
    match config.actuator:
        case "process":
            from services.autoscaler.actuators.process import ProcessActuator

            return ProcessActuator(config, store)
        case "compose":
            from services.autoscaler.actuators.compose import ComposeActuator

            return ComposeActuator(config.compose_command, config.targets_by_role())
        case "kubernetes":
            from services.autoscaler.actuators.kubernetes import KubernetesActuator

            return KubernetesActuator(config.targets_by_role(), config.kubernetes_namespace)
        case _:
            from services.autoscaler.actuators.none import NoActuator

            return NoActuator()
