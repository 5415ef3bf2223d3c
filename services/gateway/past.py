"""The last ten minutes of a gateway in the store: its curves and lives outlive its process.

A minute is one value, written again every few seconds while it lasts. It holds the curves' rows,
what the figures need of the requests that ended, and the lives that took longest.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import NoReturn

from pydantic import ValidationError

from headway.console.recent import COLUMNS, HISTORY, MOST_KEPT, EndedRequest, RecentRequests
from headway.core.gateway.lives import Lives
from headway.errors import HeadwayError
from headway.life.form import packed, unpacked
from headway.life.record import LifeRecord
from services.gateway.past_form import KEPT
from services.runtime.clock import Clock
from services.runtime.essential import essential
from services.runtime.store import Store

_MINUTE = 60
_NUM_MINUTES = HISTORY // _MINUTE
MOST_LIVES = 64
"""Lives kept of each minute, those that took longest; each takes a few KiB."""


@dataclass(slots=True)
class _Minute:
    """Lives that ended in a minute, as they are written."""

    ended: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_KEPT // _NUM_MINUTES))
    longest: list[tuple[int, str, str]] = field(default_factory=list)
    """A heap of lives: microseconds, id, JSON."""

    def note(self, ended: EndedRequest) -> None:
        self.ended.append(json.dumps(ended, separators=(",", ":")))

    def live(self, life: LifeRecord) -> None:
        if len(self.longest) >= MOST_LIVES and life.total <= self.longest[0][0]:
            return
        text = json.dumps(packed(life), separators=(",", ":"))
        heapq.heappush(self.longest, (life.total, life.request_id, text))
        if len(self.longest) > MOST_LIVES:
            heapq.heappop(self.longest)

    def text(self, rows: list[list[float | None]]) -> str:
        lives = ",".join(text for _, _, text in self.longest)
        return f'{{"rows":{json.dumps(rows)},"ended":[{",".join(self.ended)}],"lives":[{lives}]}}'


class KeptPast:
    """Writes a gateway's last minutes every ``every`` seconds, and reads them at its start.

    A store that does not answer costs what would have been written meanwhile, and nothing else.
    """

    def __init__(
        self,
        store: Store,
        gateway_id: str,
        recent: RecentRequests,
        lives: Lives,
        clock: Clock,
        every: float,
    ) -> None:
        """``every``: 0 for a gateway that leaves nothing."""
        self._store = store
        self._gateway_id = gateway_id
        self._recent = recent
        self._lives = lives
        self._clock = clock
        self._every = every
        self._minutes: dict[int, _Minute] = {}
        self._has_read = False
        self._task: asyncio.Task[NoReturn] | None = None

    def ended(self, request: EndedRequest, life: LifeRecord | None) -> None:
        """Take a request that is over."""
        if not self._every:
            return
        minute = self._minute(request.ended_at)
        minute.note(request)
        if life is not None:
            minute.live(life)

    async def start(self) -> None:
        """Take up what an earlier process of this name left, then write from now on."""
        if self._every:
            await self._read()
            self._task = essential(self._run(), "past")

    async def _read(self) -> None:
        try:
            texts = await self._store.read_past(self._gateway_id, _NUM_MINUTES)
        except HeadwayError:  # logged there
            return
        self._has_read = True
        lives: dict[str, LifeRecord] = {}
        rows, ended = list[list[float | None]](), list[EndedRequest]()
        for key, text in texts.items():
            try:
                kept = KEPT.validate_json(text)
                lives |= {life.request_id: life for life in map(unpacked, kept["lives"])}
            except (ValidationError, HeadwayError):
                self._store.unreadable(key, text)
            else:
                rows += kept["rows"]
                ended += kept["ended"]
        self._take(rows, ended, lives)

    async def stop(self) -> None:
        """Write a last time."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            await self._save()

    def _take(
        self,
        rows: Sequence[list[float | None]],
        ended: Iterable[EndedRequest],
        lives: Mapping[str, LifeRecord],
    ) -> None:
        now = self._clock.now()
        in_order = sorted(
            (each for each in ended if now - HISTORY <= each.ended_at <= now),
            key=attrgetter("ended_at"),
        )
        whole = [row for row in rows if len(row) == len(COLUMNS)]
        timed = [(at, row) for row in whole if (at := row[0]) and now - HISTORY <= at <= now]
        self._recent.restore([row for _, row in sorted(timed, key=itemgetter(0))], in_order)
        known = [lives[each.request_id] for each in in_order if each.request_id in lives]
        self._lives.restore(known)
        written = {*self._minutes, _minute_of(now)}
        for each in in_order:
            if _minute_of(each.ended_at) in written:
                self.ended(each, lives.get(each.request_id))

    async def _run(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._every)
            await self._save()

    async def _save(self) -> None:
        """Write, but never over what could not be read yet."""
        if not self._has_read:
            await self._read()
        if self._has_read:
            await self._write()

    async def _write(self) -> None:
        """Write the minute that lasts, and the one before, if it has not had its last word."""
        now = int(self._clock.now()) // _MINUTE
        self._minute(now * _MINUTE)
        for number in sorted(self._minutes):
            minute = self._minutes.get(number)
            if minute is None:  # dropped while another was being written
                continue
            rows = [row for row in self._recent.history if _minute_of(row[0] or 0.0) == number]
            text = minute.text(rows)
            try:
                await self._store.save_past(self._gateway_id, number % _NUM_MINUTES, text, HISTORY)
            except HeadwayError:  # logged there
                return
            if number < now:
                self._minutes.pop(number, None)

    def _minute(self, at: float) -> _Minute:
        """Return the minute of an instant; those that could not be written for long are dropped."""
        number = _minute_of(at)
        if number not in self._minutes and len(self._minutes) >= _NUM_MINUTES:
            del self._minutes[min(self._minutes)]
        return self._minutes.setdefault(number, _Minute())


def _minute_of(at: float) -> int:
    return int(at) // _MINUTE
