"""Emptying workers: those that drain, and those that have changed their role.

Requests that have not begun return to the window. Decoding requests move while they run; one that
fits nowhere else stays until it ends. Limits per link bound the moves at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from headway.cluster import UnitId
from headway.core.scheduler.decode import DecodePlacer
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import OnUnit, Tracked
from headway.core.scheduler.state import SchedulerState
from headway.messages import GiveBack
from headway.policies.placement import Choice, DecodeUnit
from headway.request import StreamKey


class Drains:
    """The plan of which requests leave which worker; ``moves`` carries it out."""

    def __init__(
        self,
        state: SchedulerState,
        instances: Mapping[str, Instance],
        placer: DecodePlacer,
    ) -> None:
        self._state = state
        self._instances = instances
        self._placer = placer
        self._emptying: dict[str, set[StreamKey]] = {}  # by worker: requests that were asked for
        self.next_wakeup = inf
        """Instant when a request that has just moved may move again; infinite for none."""

    def update(self, instance: Instance) -> None:
        """Note a worker that drains or has changed its role."""
        if instance.draining or instance.has_changed:
            self._emptying.setdefault(instance.info.worker_id, set())

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._emptying.pop(worker_id, None)

    def wanted(self, *, now: float) -> Iterator[tuple[Tracked, UnitId]]:
        """Yield requests that can move now; each is moved before the next is computed."""
        self.next_wakeup = inf
        for worker_id in list(self._emptying):
            instance = self._instances[worker_id]
            if not instance.takes_prefill:
                self._call_back(instance, self._emptying[worker_id])
            if not instance.takes_decode:
                yield from self._empty(instance, now)
            if not (instance.draining or self._is_misplaced(instance)):
                instance.has_changed = False
                del self._emptying[worker_id]

    def _held(self, instance: Instance, *, decoding: bool) -> list[Tracked]:
        entries = [self._state.tracked[key] for key in instance.keys]
        return [e for e in entries if isinstance(e.place, OnUnit) and e.is_decoding is decoding]

    def _is_misplaced(self, instance: Instance) -> bool:
        """Return whether a worker holds, or will hold, requests that do not fit its role."""
        if instance.takes_decode:
            return not instance.takes_prefill and bool(self._held(instance, decoding=False))
        coming = any(k in self._state.tracked for k in instance.inbound_keys)
        return coming or any(self._is_ours(key) for key in instance.keys)

    def _is_ours(self, key: StreamKey) -> bool:
        entry = self._state.tracked[key]
        return entry.is_relocating or entry.is_decoding

    # --- requests that have not begun -------------------------------------------------

    def _call_back(self, instance: Instance, asked: set[StreamKey]) -> None:
        """Ask once for each request that has not begun; those that have begun stay."""
        waiting = [e for e in self._held(instance, decoding=False) if e.key not in asked]
        keys = tuple(entry.key for entry in waiting if self._has_another(instance, entry))
        if keys:
            asked.update(keys)
            self._state.tell_worker(instance.info.worker_id, GiveBack(keys))

    def _has_another(self, instance: Instance, entry: Tracked) -> bool:
        """Return whether another worker could prefill it."""
        return any(
            other.takes_prefill
            and other.info.model == entry.model
            and (entry.request is None or other.could_hold(entry.request))
            for other in self._instances.values()
            if other is not instance
        )

    # --- decoding requests ------------------------------------------------------------

    def _empty(self, instance: Instance, now: float) -> Iterator[tuple[Tracked, UnitId]]:
        """Yield moves, longest remaining requests first, as many as the links allow."""
        settings = self._state.settings
        leaving = sum(self._state.tracked[key].is_relocating for key in instance.keys)
        room = settings.moves.per_link - leaving
        ready: list[Tracked] = []
        for entry in self._held(instance, decoding=True):
            rests_until = entry.moved_at + settings.moves.rest
            if now >= rests_until:
                ready.append(entry)
            else:
                self.next_wakeup = min(self.next_wakeup, rests_until)
        if room <= 0 or not ready:
            return
        units = self._placer.units(instance.info.model, instance.info.kv_kind)
        considered = self._placer.considered(ready, units)
        choices = self._choose(sorted(ready, key=_longest), units, room)
        for choice in choices:
            yield choice.request, choice.unit
        if choices:
            self._placer.explain("drain", considered, choices, len(ready) - len(choices), now)

    def _choose(
        self, ready: Sequence[Tracked], units: Sequence[DecodeUnit], room: int
    ) -> list[Choice[Tracked]]:
        """Choose by the placement policy, among units whose link has room."""
        links = {u.unit.worker_id: self._link_room(u.unit.worker_id) for u in units}
        chosen: list[Choice[Tracked]] = []
        for entry in ready:
            open_units = [u for u in units if links[u.unit.worker_id] > 0]
            if len(chosen) == room or not open_units:
                break
            for choice in self._placer.placement(entry.model).place([entry], open_units):
                links[choice.unit.worker_id] -= 1
                chosen.append(choice)
        return chosen

    def _link_room(self, worker_id: str) -> int:
        """Return how many more requests may move to a worker."""
        tracked = self._state.tracked
        arriving = (tracked.get(key) for key in self._instances[worker_id].inbound_keys)
        num_moving = sum(entry is not None and entry.is_relocating for entry in arriving)
        return self._state.settings.moves.per_link - num_moving


def _longest(entry: Tracked) -> tuple[float, StreamKey]:
    if entry.request is None:
        return 0.0, entry.key
    request = entry.request
    total = request.predicted_output_tokens or request.sampling.max_tokens
    return entry.num_tokens - len(request.prompt_token_ids) - total, entry.key
