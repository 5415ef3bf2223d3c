"""Turns between the tenants of a worker: who was served less stands first, whatever the policy.

While two tenants are there, each has a level: how much more it was served than the one that was
served least, in chunks. Places in a pass, tokens of its chunk and KV blocks go by level, then by
the policy's order. Who holds more than an even part of scarce blocks stands behind others that were
served alike. Service counts while somebody has to wait, as in VTC. A newcomer has credit, which any
pass uses up.

A pass takes as long as its requests let it. So whoever is ahead of others makes their passes at
most ``_LONGER`` times as long, by what passes cost here; also of those who were here of late, for
who comes waits for the pass in flight. While more of theirs are left out of passes than are in
them, none of theirs is admitted: it would hold blocks and wait.
"""

from __future__ import annotations

from collections import Counter, abc
from math import inf

from headway.core.token_counters import CREDIT, OUTPUT_WEIGHT, PARTS_BEHIND
from headway.core.worker.fair_chunk import RECENT
from headway.core.worker.flight import Share
from headway.core.worker.sequence import Sequence
from headway.core.worker.unit import WorkerUnit
from headway.core.worker.waiting import LEAST_WEIGHT
from headway.cost.pass_time import PassTime
from headway.cost.pass_time import Share as Work
from headway.forward_pass import PassItem

_LONGER = 2.0
"""Times as long as without them that those who are ahead may make a pass: half of it is theirs."""

_MOST_SCORED = 16.0
"""The most tokens as which one with log probabilities counts."""

_SCARCE = 4
"""Blocks are scarce while less than one in so many is free."""

_FEW = 8
"""Tokens: a pass of fewer says nothing of what one costs."""
_LASTS = 0.95
"""The part of what an unexpectedly long pass has said that is left after each further one."""

_ROUNDING = 1e-6
"""Share of a token by which sums of seconds may be off."""


class FairTurns:
    """Work done for each tenant of a worker, and who is ahead of whom.

    ``levels``: by tenant, 0 for who was served least; empty while there is one tenant.
    """

    def __init__(self) -> None:
        self.levels: dict[str, float] = {}
        self.pass_time = PassTime(0.0)
        """The cost of passes here, as far as it is known."""
        self.score_per_token: float | None = None
        """Seconds for the log probabilities of a token of a prompt; None before any."""
        self._excess = 0.0
        """Seconds that a token takes more than ``pass_time`` says, by passes of late."""
        self._chunk_tokens = 1
        self._credit = CREDIT
        self._served: dict[str, float] = {}
        """Weighted tokens over its share, by tenant; a newcomer has its credit less."""
        self._fresh: dict[str, float] = {}
        """Credit that newcomers have left, in weighted tokens over their shares."""
        self._parts: dict[str, float] = {}
        """Credit that the pass takes of newcomers."""
        self._floods: abc.Collection[str] = ()
        """Tenants that ask for more than a newcomer's credit, where they decode, too."""
        self._seen: dict[str, int] = {}
        """Number of the last pass for which a tenant was there."""
        self._num_passes = 0
        self._seconds = self._own_seconds = 0.0
        self._has_ahead = False
        self._seconds_of: dict[str, float] = {}

    def look(self, unit: WorkerUnit) -> None:
        """Note who is on a unit, before its part of a pass is planned."""
        self._chunk_tokens, self._credit = unit.chunk_tokens, CREDIT * unit.chunk_tokens
        wanted = {each.sequence.tenant for each in unit.wanted.values()}
        if len(self._seen) == 1 and not wanted and unit.tenants.keys() == self._seen.keys():
            return  # alone
        self._seen |= dict.fromkeys((*unit.tenants, *wanted), self._num_passes)
        since = self._num_passes - RECENT
        self._seen = {name: seen for name, seen in self._seen.items() if seen >= since}
        known = [self._served[name] for name in self._seen if name in self._served]
        start = min(*known, max(known) - self._credit) if known else 0.0
        credit = min(known, default=start) - start
        self._fresh |= {name: credit for name in self._seen if name not in self._served}
        self._served = {name: self._served.get(name, start) for name in self._seen}
        self._withdraw(unit)
        self.levels = self._levels(unit) if len(self._served) > 1 else {}
        self._floods = [n for n in self.levels if unit.is_unified and unit.asks_much(n)]

    def _withdraw(self, unit: WorkerUnit) -> None:
        """Put newcomers that ask for more than their credit behind those who ask for less.

        Who was served more than the credit beyond one is ahead of it in any case.
        """
        for name in list(self._fresh):
            if name not in self._served:
                del self._fresh[name]
            elif unit.asks_much(name):
                del self._fresh[name]
                least = self._served[name] + self._credit
                small = [
                    had for n, had in self._served.items() if had <= least and not unit.asks_much(n)
                ]
                behind = max(small, default=-inf) + self._credit / PARTS_BEHIND
                self._served[name] = max(self._served[name], behind)

    def _levels(self, unit: WorkerUnit) -> dict[str, float]:
        """Return the places of tenants by chunks served: they change when one passes another.

        Of those in one place, who has more than an even part of scarce blocks stands behind.
        """
        least = min(self._served.values())
        chunks = {name: (had - least) // self._chunk_tokens for name, had in self._served.items()}
        places = {had: float(place) for place, had in enumerate(sorted(set(chunks.values())))}
        hogs = self._hogs(unit)
        levels = {name: places[had] + 0.5 * (name in hogs) for name, had in chunks.items()}
        first = min(levels.values())
        return {name: level - first for name, level in levels.items()} if first else levels

    def _hogs(self, unit: WorkerUnit) -> abc.Collection[str]:
        """Return who holds more than its even part of a unit's blocks, where few are free."""
        pool = unit.pool
        if pool.num_free * _SCARCE > pool.num_blocks:
            return ()
        held, share = Counter[str](), dict.fromkeys(self._served, 1.0)
        for each in unit.holding.values():
            held[each.tenant] += len(each.kv.blocks)
            share[each.tenant] = _share(each)
        part = pool.num_blocks / sum(share.values())
        return [name for name in held if held[name] > part * share[name]]

    def passed(self, num_steps: int) -> None:
        """Note that so many passes have ended."""
        self._num_passes += num_steps
        for name, part in self._parts.items():
            self._spend(name, num_steps * part)
        self._parts.clear()

    def _spend(self, name: str, num_tokens: float) -> None:
        """Take so much of a newcomer's credit, as far as it has any."""
        spent = min(num_tokens, self._fresh.get(name, 0.0))
        if spent and name in self._served:
            self._fresh[name] -= spent
            self._served[name] += spent

    def charge(self, shares: abc.Iterable[Share], *, some_wait: bool) -> None:
        """Count what a pass computes: its tokens, if some wait for a place in it.

        If it is long beside what one of the tenants has in it, that one waits for it: it counts
        as a chunk. And so does any pass for a newcomer's credit.
        """
        used, share = dict[str, float](), dict[str, float]()
        for item, sequence in shares:
            name, num_tokens = sequence.tenant, len(item.token_ids)
            weight = self.score_weight if item.num_scored else 1.0
            weight = OUTPUT_WEIGHT if num_tokens == 1 and item.sample else weight
            used[name] = used.get(name, 0.0) + weight * num_tokens
            share[name] = _share(sequence)
        total, is_long = sum(used.values()), self._is_long()
        for name, weighted in used.items():
            part = self._chunk_tokens * weighted / total
            counted = max(weighted if some_wait else 0.0, part if is_long else 0.0)
            self._served[name] += counted / share[name]
            if name in self._fresh:
                part = max(0.0, part - counted) / share[name]
                self._parts[name] = max(part, self._parts.get(name, 0.0))

    def took(self, works: abc.Sequence[Work], seconds: float) -> None:
        """Note how long a pass took, so much for each of its steps.

        Costs are fitted to many passes. One that took far longer than they say tells at once that
        so many items cost more: few say nothing of it where a pass has a least time.
        """
        self._excess *= _LASTS
        num_tokens = max((work.prefill_tokens + work.batch for work in works), default=0)
        expected = self.pass_time.lock_step(works)
        if num_tokens >= _FEW and seconds > _LONGER * expected > 0:
            self._excess = max(self._excess, (seconds - expected) / num_tokens)

    def _is_long(self) -> bool:
        """Return whether the pass takes much longer than for the one with the least in it."""
        base, one = self.pass_time.base, self.pass_time.per_request
        least = min(self._seconds_of.values(), default=0.0)
        return self._seconds > _LONGER * (base + max(one, least))

    # --- the length of a pass -----------------------------------------------------------

    def begin(self) -> None:
        """Begin the plan of a unit's part of a pass."""
        self._seconds = self._own_seconds = self.pass_time.base
        self._has_ahead = False
        self._seconds_of = dict.fromkeys(self._served, 0.0)

    def planned(self, sequence: Sequence, item: PassItem, num_before: int) -> None:
        """Count the time of an item of the pass; its first ``num_before`` tokens are counted."""
        num_tokens = len(item.token_ids) - num_before
        seconds = num_tokens * self._per_token(sequence)
        self._seconds += seconds
        self._seconds_of[sequence.tenant] += seconds
        if self.is_ahead(sequence):
            self._has_ahead = True
        else:
            self._own_seconds += seconds

    def most(self, sequence: Sequence, num_tokens: int) -> int:
        """Return how many of these tokens make the pass no longer than it may be.

        Ask in the order of levels. One token of those who are ahead always has its place. Prompts
        are bounded by their parts of the chunk (``fair_chunk``). Those of a flood count here, too,
        and those that are computed once more.
        """
        per_token = self._per_token(sequence)
        counts = sequence.decoding or sequence.num_preemptions or sequence.tenant in self._floods
        if not (counts and per_token and self.is_ahead(sequence)):
            return num_tokens
        least = self.pass_time.base + self.pass_time.per_request
        left = _LONGER * max(self._own_seconds, least) - self._seconds
        fits = int(min(num_tokens, max(0.0, left / per_token + _ROUNDING)))
        return min(num_tokens, max(0 if self._has_ahead else 1, fits))

    def _per_token(self, sequence: Sequence) -> float:
        known, start = self.pass_time, sequence.kv.num_computed
        if sequence.decoding:
            return known.per_request + known.per_kv_token * start + self._excess
        per_token = known.per_prefill_token + known.per_prefill_context * start
        return per_token + self.per_score if sequence.is_scored else per_token

    @property
    def per_score(self) -> float:
        """Seconds for the log probabilities of a token: as for the token, before any is known."""
        known = self.score_per_token
        return self.pass_time.per_prefill_token if known is None else known

    @property
    def score_weight(self) -> float:
        """Tokens of prompts as which one counts whose log probabilities are asked for."""
        per_token = self.pass_time.per_prefill_token
        return min(_MOST_SCORED, 1.0 + self.per_score / per_token) if per_token else 2.0

    def is_ahead(self, sequence: Sequence) -> bool:
        """Return whether its tenant was served more than another that is here."""
        return self.levels.get(sequence.tenant, 0.0) > 0.0

    # --- blocks -------------------------------------------------------------------------

    def yields(self, victim: Sequence, for_: Sequence, held: Counter[str]) -> bool:
        """Return whether a running request leaves its blocks to one of another tenant.

        ``held``: the blocks that every tenant then has, if it keeps its own. It leaves them while
        its tenant is ahead, and is left with no less than the other.
        """
        levels, one, other = self.levels, victim.tenant, for_.tenant
        if levels.get(one, 0.0) <= levels.get(other, 0.0):
            return False
        left = held[one] - len(victim.kv.blocks)
        return left * _share(for_) >= held[other] * _share(victim)


def _share(sequence: Sequence) -> float:
    return max(LEAST_WEIGHT, sequence.request.standing.share)
