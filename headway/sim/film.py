"""A film of a simulated run: frames of the console, as a live gateway would have sent them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headway.console.conversations import sessions_of
from headway.console.fleet import Roll
from headway.console.frame import cluster_of, promises_of, rows_of
from headway.console.recent import COLUMNS, EndedRequest, RecentRequests
from headway.core.gateway.rows import RowQuery, RowSearch
from headway.service_class import ServiceClass, Standing
from headway.sim.clients import SimRequest
from headway.sim.cluster import SimCluster
from headway.sim.records import Record

Json = dict[str, Any]
MOST_FRAMES = 1200
_MODEL_TIME = "profile_pass_time"


class Film:
    """The frames of one run; ``watch`` and ``ended`` are for ``simulate``.

    ``every``: virtual seconds between two frames. It doubles, and every other frame goes, when
    there are too many.
    """

    def __init__(self, scenario: str, preset: str, every: float = 1.0) -> None:
        self.frames: list[Json] = []
        self._scenario, self._preset, self.every = scenario, preset, every
        self._recent = RecentRequests(0.0)
        self._roll = Roll()
        self._standings: dict[str, Standing] = {}
        self._classes: dict[str, ServiceClass] = {}
        self._num_produced = 0
        self._search = RowSearch(RowQuery(num_rows=50))

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of a frame's ``point``."""
        return COLUMNS

    def watch(self, cluster: SimCluster) -> None:
        """Film this run from its beginning."""
        cluster.on_arrival = partial(self._arrived, cluster.on_arrival)
        cluster.kernel.after(0.0, partial(self._look, cluster))

    def ended(self, record: Record) -> None:
        """Take a request that is over."""
        self._recent.note(self._ended(record))

    def _arrived(self, before: Callable[[SimRequest], None], request: SimRequest) -> None:
        before(request)
        self._recent.arrived()
        self._standings[request.request_id] = request.standing
        service = request.standing.service
        if service is not None:
            self._classes[service.name] = service

    def _look(self, cluster: SimCluster) -> None:
        produced = cluster.num_produced
        self._recent.produced(produced - self._num_produced)
        self._num_produced = produced
        self.frames.append(self._frame(cluster))
        if len(self.frames) > MOST_FRAMES:
            del self.frames[1::2]
            self.every *= 2
        if cluster.is_busy:
            cluster.kernel.after(self.every, partial(self._look, cluster))

    def _frame(self, cluster: SimCluster) -> Json:
        now, core = cluster.kernel.now, cluster.gateway_cores[0]
        num_open = sum(each.num_open for each in cluster.gateway_cores)
        num_waiting = sum(each.num_waiting for each in cluster.gateway_cores)
        self._recent.tick(num_open, num_waiting, now=now)
        picture = cluster.scheduler_core.pictures.draw()
        history = self._recent.history
        return {
            "now": now,
            "source": "simulated",
            "gateway": {
                "id": cluster.spec.gateway_ids[0],
                "model": self._scenario,
                "preset": self._preset,
                "status": "ok",
                "open": num_open,
                "waiting": num_waiting,
            },
            "promises": promises_of(self._classes.values()),
            "classes": self._recent.by_class(now),
            "point": history[-1] if history else None,
            "workers": {
                name: _without_model_time(card)
                for name, card in self._roll.update(picture, None, now=now).items()
            },
            "cluster": cluster_of(picture),
            "sessions": sessions_of(core.sessions, now),
            "requests": rows_of(self._search.look(core.streams.requests, now)),
        }

    def _ended(self, record: Record) -> EndedRequest:
        standing = self._standings.pop(record.request_id, Standing())
        service, latencies = standing.service, record.latencies
        kept = service.kept(latencies) if service is not None and record.finished else {}
        ended_at = record.last_token_at or record.arrival_at
        return EndedRequest(
            ended_at,
            record.arrival_at,
            "stop" if record.finished else "error",
            service.name if service is not None else "",
            standing.tenant,
            record.num_prompt_tokens,
            record.num_tokens,
            record.num_reasoning_tokens,
            record.ttft,
            record.ttfat,
            record.tpot,
            all(kept.values()) if kept else None,
            record.request_id,
        )


def _without_model_time(card: Mapping[str, Any]) -> Json:
    """Return a card without the profile's pass time: a simulated pass takes just that."""
    return {name: value for name, value in card.items() if name != _MODEL_TIME}
