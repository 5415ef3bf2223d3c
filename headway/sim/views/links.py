"""Links between instances: transfers over one end share it equally (``headway.sim.network``)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from headway.sim.views.agenda import Act, Agenda


class Flow:
    """A transfer: ``left`` bytes at ``since``, at ``rate`` bytes/s; ``landed`` is then called with
    ``what`` it brings.
    """

    __slots__ = ("landed", "left", "rate", "since", "source", "target", "version", "what")

    def __init__(
        self, source: str, target: str, num_bytes: int, since: float, landed: Act, what: Any
    ) -> None:
        self.source, self.target, self.landed, self.what = source, target, landed, what
        self.left, self.since, self.rate, self.version = float(num_bytes), since, 0.0, 0


class SharedLinks:
    """The flows by their ends; what they bring is there a ``latency`` later."""

    def __init__(self, agenda: Agenda, bytes_per_s: float, latency: float) -> None:
        self._agenda = agenda
        self._bytes_per_s = bytes_per_s
        self._latency = latency
        self._out: defaultdict[str, dict[Flow, None]] = defaultdict(dict)
        self._in: defaultdict[str, dict[Flow, None]] = defaultdict(dict)

    def send(
        self, source: str, target: str, num_bytes: int, at: float, landed: Act, what: Any
    ) -> None:
        """Send from an instant on; ``landed`` is called with ``what`` when it is there."""
        flow = Flow(source, target, num_bytes, at, landed, what)
        leaving, coming = self._out[source], self._in[target]
        leaving[flow] = coming[flow] = None
        if len(leaving) == len(coming) == 1:
            self._flow_at(flow, self._bytes_per_s)
        else:
            self._share(flow)

    def _share(self, changed: Flow) -> None:
        """Share both ends of a flow that has come or gone among those that are there."""
        for flow in self._out[changed.source] | self._in[changed.target]:
            num_sharing = max(len(self._out[flow.source]), len(self._in[flow.target]))
            rate = self._bytes_per_s / num_sharing
            if rate != flow.rate:
                self._flow_at(flow, rate)

    def _flow_at(self, flow: Flow, rate: float) -> None:
        now = self._agenda.now
        if now > flow.since:
            flow.left = max(0.0, flow.left - (now - flow.since) * flow.rate)
            flow.since = now
        flow.rate = rate
        flow.version += 1
        ends_at = flow.since + flow.left / rate + self._latency
        self._agenda.at(ends_at, self._end, (flow, flow.version))

    def _end(self, ended: tuple[Flow, int]) -> None:
        flow, version = ended
        if version != flow.version:
            return
        leaving, coming = self._out[flow.source], self._in[flow.target]
        del leaving[flow], coming[flow]
        if leaving or coming:
            self._share(flow)
        flow.landed(flow.what)
