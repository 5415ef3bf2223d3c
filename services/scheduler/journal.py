"""The journal of a term: the core's records, saved in the store by one fenced write at a time.

Nothing waits for it. Changes during a write are part of the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.core.scheduler.events import Learned, Persist, SavedRequest
from headway.errors import HeadwayError
from headway.request import StreamKey
from services.runtime.essential import end_tasks, essential
from services.runtime.failpoints import failpoint
from services.runtime.logs import get_logger
from services.runtime.store import Store
from services.scheduler.records import pack_key, pack_learned, pack_request

_PAUSE = 0.5  # seconds, after the store did not answer


class Journal:
    """Changes of one term; the store refuses them once a newer leader has been elected.

    ``wrote`` is called after every write with its number of records.
    """

    def __init__(
        self, store: Store, fencing_token: int, wrote: Callable[[int], object] | None = None
    ) -> None:
        self._store = store
        self._fencing_token = fencing_token
        self._wrote = wrote
        self._requests: dict[StreamKey, SavedRequest | None] = {}
        self._learned: dict[str, Learned] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.is_refused = False
        self.num_writes = 0
        self.ahead = 0.0
        """Seconds that the store's clock, which saved instants are by, is ahead of this host's."""
        self._log = get_logger()

    def write(self, persist: Persist) -> None:
        """Queue changes; write them with all others of this turn of the event loop."""
        if self._closed:
            return
        for saved in persist.saved:
            self._requests[saved.key] = saved
        for key in persist.ended:
            self._requests[key] = None
        for learned in persist.learned:
            self._learned[learned.model] = learned
        if self._task is None:
            self._task = essential(self._write_all(), "journal", may_return=True)

    async def close(self) -> None:
        """Stop writing; a write in progress may still arrive."""
        self._closed = True
        await end_tasks(self._task)

    async def _write_all(self) -> None:
        while self._requests or self._learned:
            requests, self._requests = self._requests, {}
            learned, self._learned = self._learned, {}
            try:
                is_ours = await self._write(requests, learned)
            except HeadwayError:  # the store has logged it; keep newer changes
                self._requests = requests | self._requests
                self._learned = learned | self._learned
                await asyncio.sleep(_PAUSE)
                continue
            if not is_ours:
                self._log.warning("journal_refused", fencing_token=self._fencing_token)
                self._closed = self.is_refused = True
                return
            failpoint("scheduler.journal.saved")
            if self._wrote is not None:
                self._wrote(len(requests) + len(learned))
        self._task = None

    async def _write(
        self, requests: dict[StreamKey, SavedRequest | None], learned: dict[str, Learned]
    ) -> bool:
        self.num_writes += 1
        return await self._store.write_journal(
            self._fencing_token,
            {
                pack_key(saved.key): pack_request(saved.later(self.ahead))
                for saved in requests.values()
                if saved
            },
            [pack_key(key) for key, saved in requests.items() if saved is None],
            {model.encode(): pack_learned(each) for model, each in learned.items()},
        )
