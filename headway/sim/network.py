"""Links between instances: a transfer takes its bytes over a bandwidth that others share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headway.errors import require_between, require_over
from headway.sim.kernel import Kernel


@dataclass(frozen=True, slots=True)
class NetworkParams:
    """``bytes_per_s`` of each instance's link, in each direction; ``latency`` of any message to
    or from the scheduler, one way, seconds; ``dispatch_latency``: of the scheduler's orders.
    """

    bytes_per_s: float = 12.5e9
    latency: float = 0.0002
    dispatch_latency: float = 0.0002

    def __post_init__(self) -> None:
        require_over("bytes_per_s", self.bytes_per_s, 0)
        require_between("latency", self.latency, 0, 60)
        require_between("dispatch_latency", self.dispatch_latency, 0, 60)


@dataclass(slots=True)
class _Link:
    """A direction of an instance's link, and when it has sent what it was given."""

    free_at: float = 0.0
    num_bytes: int = 0


@dataclass(slots=True)
class Network:
    """The links: every instance sends and receives one transfer after the other, in order.

    A transfer begins when both its ends are free. That is the sharing of first come, first
    served: the last of n equal transfers ends when it would under equal shares.
    """

    kernel: Kernel
    params: NetworkParams
    _out: dict[str, _Link] = field(default_factory=dict)
    _in: dict[str, _Link] = field(default_factory=dict)

    def transfer(
        self, source: str, target: str, num_bytes: int, arrived: Callable[[], None]
    ) -> float:
        """Send; ``arrived`` happens when the last byte is there. Returns that instant."""
        sender = self._out.setdefault(source, _Link())
        receiver = self._in.setdefault(target, _Link())
        begins_at = max(self.kernel.now, sender.free_at, receiver.free_at)
        ends_at = begins_at + num_bytes / self.params.bytes_per_s
        for link in (sender, receiver):
            link.free_at = ends_at
            link.num_bytes += num_bytes
        self.kernel.at(ends_at + self.params.latency, arrived)
        return ends_at

    def queued(self, source: str, target: str) -> float:
        """Seconds until a transfer asked for now could begin."""
        links = (self._out.get(source), self._in.get(target))
        return max(0.0, *(link.free_at - self.kernel.now for link in links if link is not None), 0)
