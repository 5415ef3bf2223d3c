"""Links between instances: a transfer takes its bytes over a bandwidth that others share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headway.errors import require_between, require_over
from headway.sim.hop_costs import MESSAGE, HopCosts
from headway.sim.host import Host
from headway.sim.kernel import Kernel, Timer


@dataclass(frozen=True, slots=True)
class NetworkParams:
    """``bytes_per_s`` of each instance's link, in each direction; ``latency`` of a message, one
    way, seconds; ``dispatch_latency``: of the scheduler's orders.

    ``hops``: the costs of all hops, one by one, instead of those two; ``latency`` is then that
    of messages between workers alone.
    """

    bytes_per_s: float = 12.5e9
    latency: float = MESSAGE
    dispatch_latency: float = MESSAGE
    hops: HopCosts | None = None

    @property
    def costs(self) -> HopCosts:
        """The costs of every hop."""
        if self.hops is not None:
            return self.hops
        one = self.latency
        return HopCosts(submit=one, dispatch=self.dispatch_latency, report=one)

    def __post_init__(self) -> None:
        require_over("bytes_per_s", self.bytes_per_s, 0)
        require_between("latency", self.latency, 0, 60)
        require_between("dispatch_latency", self.dispatch_latency, 0, 60)


@dataclass(slots=True, eq=False)
class _Flow:
    """A transfer under way: ``num_left`` bytes at ``since``, which flow at ``rate`` per second."""

    source: str
    target: str
    num_left: float
    arrived: Callable[[], None]
    since: float
    rate: float = 0.0
    timer: Timer | None = None


_Flows = dict[_Flow, None]  # in order of their beginning


class Network:
    """The links between instances; transfers over one end share it equally, as streams do.

    A transfer gets its share of the busier of its two ends, and waits for nobody else.
    """

    def __init__(self, kernel: Kernel, params: NetworkParams, host: Host) -> None:
        self.params = params
        self.host = host
        self._kernel = kernel
        self._out: defaultdict[str, _Flows] = defaultdict(dict)
        self._in: defaultdict[str, _Flows] = defaultdict(dict)

    def transfer(
        self, source: str, target: str, num_bytes: int, arrived: Callable[[], None]
    ) -> None:
        """Send; ``arrived`` happens when the last byte is there."""
        flow = _Flow(source, target, num_bytes, arrived, self._kernel.now)
        self._out[source][flow] = self._in[target][flow] = None
        self._share(flow)

    def cut(self, end: str) -> None:
        """End all transfers from and to an instance that is gone: both sides notice at once."""
        for flow in list(self._out[end] | self._in[end]):
            if flow.timer is not None:
                flow.timer.cancel()
            self._end(flow)

    def _share(self, changed: _Flow) -> None:
        """Share both ends of a transfer that has come or gone among those that are there."""
        for flow in self._out[changed.source] | self._in[changed.target]:
            num_sharing = max(len(self._out[flow.source]), len(self._in[flow.target]))
            self._flow_at(flow, self.params.bytes_per_s / num_sharing)

    def _flow_at(self, flow: _Flow, rate: float) -> None:
        if rate == flow.rate:
            return
        now = self._kernel.now
        flow.num_left = max(0.0, flow.num_left - (now - flow.since) * flow.rate)
        flow.since, flow.rate = now, rate
        if flow.timer is not None:
            flow.timer.cancel()
        flow.timer = self._kernel.at(now + flow.num_left / rate, partial(self._end, flow))

    def _end(self, flow: _Flow) -> None:
        del self._out[flow.source][flow], self._in[flow.target][flow]
        self.host.after(f"{flow.source} {flow.target}", self.params.latency, flow.arrived)
        self._share(flow)
