"""The pods of Kubernetes that are endpoints of an InferencePool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """An InferencePool's selection: pods with these labels, an endpoint at each of these ports."""

    labels: Mapping[str, str]
    ports: tuple[int, ...]

    @property
    def label_selector(self) -> str:
        """Return it as a query; "" selects no pod, as the pool does then."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.labels.items()))


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod as the API server has it; ``is_leaving``: it has a deletion timestamp."""

    name: str
    ip: str = ""
    labels: Mapping[str, str] | None = None
    is_ready: bool = False
    is_leaving: bool = False


class PoolPods:
    """The pods of one pool. What the API server last said holds while it says nothing."""

    def __init__(self) -> None:
        self.spec: PoolSpec | None = None
        """None while there is no such pool."""
        self._pods: dict[str, PodFacts] = {}

    def pool_is(self, spec: PoolSpec | None) -> bool:
        """Take the pool's description, None for none; return whether it selects other pods now."""
        last, self.spec = self.spec, spec
        is_other = (last.label_selector if last else "") != (spec.label_selector if spec else "")
        if is_other:
            self._pods.clear()
        return is_other

    def listed(self, pods: Iterable[PodFacts]) -> None:
        """Take all pods that there are: no other one is left."""
        self._pods = {pod.name: pod for pod in pods}

    def changed(self, pod: PodFacts) -> None:
        """Take a pod that is new or different."""
        self._pods[pod.name] = pod

    def gone(self, name: str) -> None:
        """Forget a pod that no longer exists, or is no longer selected."""
        self._pods.pop(name, None)

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """Addresses and ports of the pods that are ready and stay, in order."""
        if self.spec is None:
            return ()
        wanted = self.spec.labels.items()
        endpoints = {
            (pod.ip, port)
            for pod in self._pods.values()
            if pod.ip and pod.is_ready and not pod.is_leaving
            if wanted and wanted <= (pod.labels or {}).items()
            for port in self.spec.ports
        }
        return tuple(sorted(endpoints))
