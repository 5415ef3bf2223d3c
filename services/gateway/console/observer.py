"""The gateway's questions for the console: to the leader, the store and the autoscaler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from headway.console.fleet import MemberSeen, Roll
from headway.console.frame import cluster_of, scaling_of
from headway.core.autoscaler.events import PublishTargets
from headway.core.autoscaler.models import is_meant
from headway.errors import HeadwayError
from headway.picture import ClusterPicture
from services.runtime import wire
from services.runtime.channel import Channels
from services.runtime.config import ServiceConfig
from services.runtime.essential import essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Leader, Member, Store

T = TypeVar("T")

_INTERVAL = 0.5
_SCALING_INTERVAL = 2.0
_CALL_TIMEOUT = 2.0
_NUM_DECISIONS = 120


class ClusterObserver:
    """The cluster beyond this gateway, asked twice a second while somebody looks.

    ``draw`` asks the leader for its picture. What does not answer is shown as it was last, and
    ``silent`` in the frame says since when.
    """

    def __init__(
        self,
        config: ServiceConfig,
        model: str,
        store: Store,
        draw: Callable[[], Awaitable[ClusterPicture]],
        now: Callable[[], float],
    ) -> None:
        self._model = model
        self._store = store
        self._draw = draw
        self._now = now
        self._roll = Roll()
        self._channels = Channels(config, ServiceRole.AUTOSCALER)
        self._task: asyncio.Task[NoReturn] | None = None
        self._frame: dict[str, Any] = {"cluster": {}, "schedulers": {}, "leader": None}
        self.has_looked = False
        """True once something was found, or sought in vain, since somebody looks."""
        self._heard_at: dict[str, float] = {}
        self._scaling: dict[str, Any] = {}
        self._scaled_at = 0.0

    @property
    def frame(self) -> Mapping[str, Any]:
        """Return the newest findings; before the first look, those of who looked last."""
        return {**self._frame, **self._scaling}

    def start(self) -> None:
        """Ask from now on; a repeat does nothing."""
        if self._task is None:
            self._task = essential(self._run(), "console")

    def pause(self) -> None:
        """Ask no more, because nobody looks."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self.has_looked = False

    async def stop(self) -> None:
        """Close the channels."""
        self.pause()
        await self._channels.close()

    async def _run(self) -> NoReturn:
        while True:
            await self._look()
            await asyncio.sleep(_INTERVAL)

    async def _look(self) -> None:
        picture, workers, schedulers, leader = await asyncio.gather(
            _or_none(self._draw()),
            _or_none(self._store.members("worker")),
            _or_none(self._store.members("scheduler")),
            _or_none(self._store.leader()),
        )
        now = self._now()
        seen = None if workers is None else [_seen(member) for member in workers]
        self._frame["workers"] = self._roll.update(picture, seen, now=now)
        if picture is not None:
            self._frame["cluster"] = cluster_of(picture)
        if schedulers is not None:
            who = {"id": leader.candidate_id, "term": leader.fencing_token} if leader else None
            self._frame |= {"schedulers": _schedulers(schedulers, leader), "leader": who}
        answers = {"leader": picture is not None, "store": schedulers is not None}
        for name, has_answered in answers.items():
            if has_answered or name not in self._heard_at:
                self._heard_at[name] = now
        silent = {name: self._heard_at[name] for name in answers if not answers[name]}
        self._frame["silent"] = silent
        self.has_looked = True
        if now - self._scaled_at >= _SCALING_INTERVAL:
            self._scaled_at = now
            self._scaling = await self._read_scaling()

    async def _read_scaling(self) -> dict[str, Any]:
        members = await _or_none(self._store.members("autoscaler"))
        if members is None:
            return self._scaling
        meant = (m.address for m in members if is_meant(self._model, m.model))
        address = min(meant, default="")
        await self._channels.close(keep=[address] if address else ())
        if not address:
            return {"autoscaler": None, "scaling": []}
        decided = await _or_none(_decisions(self._channels, address))
        if decided is None:
            return {**self._scaling, "autoscaler": {"answers": False}}
        return {"autoscaler": {"answers": True}, "scaling": scaling_of(decided)}


async def _decisions(channels: Channels, address: str) -> Sequence[PublishTargets]:
    channel = channels.to(address)
    return await wire.scaling_decisions(channel, _NUM_DECISIONS, within=_CALL_TIMEOUT)


async def _or_none(asked: Awaitable[T]) -> T | None:
    """Return the answer; None where there is none in time."""
    try:
        async with asyncio.timeout(_CALL_TIMEOUT):
            return await asked
    except (HeadwayError, TimeoutError):
        return None


def _seen(member: Member) -> MemberSeen:
    return MemberSeen(member.member_id, member.role, member.address)


def _schedulers(members: Collection[Member], leader: Leader | None) -> dict[str, Any]:
    leading = leader.address if leader is not None else None
    return {
        member.member_id: {"address": member.address, "leads": member.address == leading}
        for member in members
    }
