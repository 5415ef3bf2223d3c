"""Leader election: a lease in the store, held by one scheduler at a time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headway.errors import HeadwayError
from services.runtime.clock import Clock
from services.runtime.essential import end_tasks, essential
from services.runtime.failpoints import failpoint
from services.runtime.logs import get_logger
from services.runtime.store import Store

_MARGIN = 0.1  # of a lease
_NEARLY = 0.005  # seconds; a shorter timeout is not worth a call


class Leadership:
    """A candidate in the election for as long as it runs; ``draw`` returns random bytes.

    ``elected`` gets the fencing token. ``deposed`` is called when the lease is lost or can no
    longer be proven. The lease is renewed three times in its lifetime. If the store does not
    answer, the candidate retries for as long as the lease surely lasts, so an outage of less than
    half a lease ends no term. No other candidate can win before then, and a later leader has a
    newer token.

    Each term has its own fencing token and dispatch ids. A candidate whose term has ended without
    the store's word takes another name, because a renewal under the old one would keep the token.
    It first releases the lease of the old name. A store that has lost its data gives the leader a
    new token under its name, and thus a new term at once.
    """

    def __init__(
        self,
        store: Store,
        service_id: str,
        address: str,
        ttl: float,
        clock: Clock,
        *,
        elected: Callable[[int], Awaitable[None]],
        deposed: Callable[[], Awaitable[None]],
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._service_id = service_id
        self._draw = draw
        self._candidate_id = self._new_candidate()
        self._former_id = ""
        self._address = address
        self._ttl = ttl
        self._clock = clock
        self._elected = elected
        self._deposed = deposed
        self._token: int | None = None
        self._held_until = 0.0
        self._seen = 0
        """The newest fencing token that the store has shown."""
        self._task: asyncio.Task[None] | None = None
        self._resigned = asyncio.Event()
        self._resigns_because = ""
        self.leader_address = ""
        self._log = get_logger()

    @property
    def leads(self) -> bool:
        """True if this scheduler holds the lease."""
        return self._token is not None

    def start(self) -> None:
        """Become a candidate."""
        self._task = essential(self._run(), "leadership")

    def resign(self, reason: str) -> None:
        """End the term soon, and give other candidates a chance; do nothing without a term."""
        if self._token is not None:
            self._resigns_because = reason
            self._resigned.set()

    async def stop(self) -> None:
        """Release the lease at once, so that nobody waits until it expires."""
        await end_tasks(self._task)
        # Even without the lead: an answer of the store may have been in flight.
        candidate_id = self._candidate_id
        await self._step_down("stopping")
        try:
            await self._store.release_leader(candidate_id)
        except HeadwayError as error:
            self._log.warning("lease_not_released", error=error.message)

    async def _run(self) -> None:
        while True:
            asked_at = self._clock.now()
            try:
                async with asyncio.timeout(self._patience(asked_at)):
                    await self._release_former()
                    token = await self._store.acquire_leader(
                        self._candidate_id, self._address, self._ttl, seen=self._seen
                    )
                    await self._note_leader()
                await self._answered(token, asked_at)
            except (HeadwayError, TimeoutError) as error:
                self._log.warning("store_unreachable", error=repr(error))
                if self._clock.now() >= self._surely_until - _NEARLY:
                    await self._step_down("the lease could not be renewed")
                await asyncio.sleep(self._ttl / 20)
                continue
            await self._rest(self._ttl / 3 if self._token is not None else self._ttl / 10)

    async def _rest(self, seconds: float) -> None:
        """Wait until the next call; end the term and sit out one lease if it has resigned."""
        try:
            async with asyncio.timeout(seconds):
                await self._resigned.wait()
        except TimeoutError:
            return
        self._resigned.clear()
        await self._step_down(self._resigns_because)
        with suppress(HeadwayError):
            await self._release_former()
        await asyncio.sleep(self._ttl)

    async def _release_former(self) -> None:
        """Release the lease of a name whose term has ended; nobody else can lead until then."""
        if self._former_id:
            await self._store.release_leader(self._former_id)
            self._former_id = ""

    @property
    def _surely_until(self) -> float:
        """Instant until which nobody else can lead, less a margin for stepping down and clock
        drift."""
        return self._held_until - self._ttl * _MARGIN

    def _patience(self, now: float) -> float:
        """Return the timeout of a call: no longer than its answer would be of use."""
        longest = self._ttl / 3
        if self._token is None:
            return longest
        return min(longest, max(_NEARLY, self._surely_until - now))

    async def _answered(self, token: int | None, asked_at: float) -> None:
        if token is None:
            await self._step_down("another scheduler leads")
            return
        self._held_until = asked_at + self._ttl
        if token == self._token:
            return
        await self._step_down("the lease had expired", keeps_name=True)
        self._token = token
        self._log.info("elected", fencing_token=token)
        failpoint("scheduler.lease.taken")
        try:
            await self._elected(token)
        except HeadwayError:
            await self._step_down("the term could not begin")
            raise

    async def _note_leader(self) -> None:
        leader = await self._store.leader()
        self.leader_address = leader.address if leader is not None else ""
        if leader is not None:
            self._seen = max(self._seen, leader.fencing_token)

    async def _step_down(self, reason: str, *, keeps_name: bool = False) -> None:
        if self._token is None:
            return
        self._log.info("deposed", reason=reason, fencing_token=self._token)
        self._token = None
        self._resigned.clear()
        if not keeps_name:
            self._former_id, self._candidate_id = self._candidate_id, self._new_candidate()
        await self._deposed()

    def _new_candidate(self) -> str:
        return f"{self._service_id}-{self._draw(4).hex()}"
