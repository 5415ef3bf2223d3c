"""Cards of workers: those that are there, those that start, and those that are gone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, NamedTuple

from headway.picture import ClusterPicture, WorkerPicture

Card = dict[str, Any]

AHEAD = 10.0
"""Seconds for which a worker's KV is foretold."""
REMEMBERED = 600.0
"""Seconds for which a worker that is gone is still shown."""
_MOST_CARDS = 256


class MemberSeen(NamedTuple):
    """A worker that holds a lease in the store."""

    worker_id: str
    role: str
    address: str


class Roll:
    """The workers seen lately. A card's ``state`` says whether its worker serves.

    A worker in the leader's picture serves or drains. One that this leader has shown and shows no
    more is gone, whatever its lease says. Any other with a lease is starting, and one without is
    gone. Who is gone stays for ten minutes, with the last figures. While no leader answers a worker
    with a lease stays as it was.
    """

    def __init__(self) -> None:
        self._cards: dict[str, Card] = {}
        self._gone_at: dict[str, float] = {}
        self._shown_in: dict[str, int] = {}  # the last term in which a leader showed it

    def update(
        self, picture: ClusterPicture | None, members: Collection[MemberSeen] | None, *, now: float
    ) -> Mapping[str, Card]:
        """Return the cards by worker id; None for a leader or a store that does not answer."""
        by_id = {w.worker_id: w for w in picture.workers[:_MOST_CARDS]} if picture else {}
        leased = {each.worker_id: each for each in list(members or ())[:_MOST_CARDS]}
        for worker_id in dict.fromkeys((*self._cards, *by_id, *leased)):
            if picture is not None and worker_id in by_id:
                self._shown_in[worker_id] = picture.fencing_token
                self._keep(worker_id, card_of(by_id[worker_id]))
            elif picture is not None and self._shown_in.get(worker_id) == picture.fencing_token:
                self._miss(worker_id, now)
            elif picture is None and worker_id in self._cards and worker_id in leased:
                continue
            elif worker_id in leased:
                self._keep(worker_id, _starting(leased[worker_id], self._cards.get(worker_id)))
            elif members is not None:
                self._miss(worker_id, now)
        return dict(sorted(self._cards.items()))

    def _keep(self, worker_id: str, card: Card) -> None:
        self._cards[worker_id] = card
        self._gone_at.pop(worker_id, None)

    def _miss(self, worker_id: str, now: float) -> None:
        gone_at = self._gone_at.setdefault(worker_id, now)
        if now - gone_at <= REMEMBERED:
            self._cards[worker_id] = {
                **self._cards[worker_id],
                "state": "gone",
                "gone_at": gone_at,
            }
            return
        for known in (self._cards, self._gone_at, self._shown_in):
            known.pop(worker_id, None)


def card_of(worker: WorkerPicture) -> Card:
    """Return what a card shows of a worker that its leader knows."""
    num_blocks = max(worker.num_blocks, 1)
    card: Card = {
        "role": worker.role.value,
        "model": worker.model,
        "address": worker.address,
        "state": "draining" if worker.is_draining else "serving",
        "units": worker.num_units,
        "batch": worker.num_running,
        "arriving": worker.num_arriving,
        "queued_tokens": worker.queued_tokens,
        "kv_tokens": worker.kv_tokens,
        "host_tokens": worker.host_tokens,
        "kv_used": min(worker.num_used_blocks / num_blocks, 1.0),
        "kv_promised": min(worker.num_promised_blocks / num_blocks, 1.0),
    }
    if worker.pass_time > 0:
        card["pass_time"] = worker.pass_time
    if worker.profile_pass_time > 0:
        card["profile_pass_time"] = worker.profile_pass_time
    if worker.constants:
        card["order"] = {
            each.name: [each.value if isfinite(each.value) else None, each.source]
            for each in worker.constants
        }
    ahead = kv_ahead(worker)
    if ahead is not None:
        card["kv_ahead"] = min(ahead / (num_blocks * worker.block_size), 1.0)
    return card


def kv_ahead(worker: WorkerPicture, seconds: float = AHEAD) -> float | None:
    """Return the KV tokens predicted for ``seconds`` from now; None where nothing is predicted.

    Between two steps the load is interpolated; a time beyond the last step has no prediction.
    """
    step, loads = worker.ahead_step, worker.ahead_tokens
    if step <= 0 or not loads or seconds > step * len(loads):
        return None
    times = [step * (k + 1) for k in range(len(loads))]
    after = bisect_left(times, seconds)
    before_at = times[after - 1] if after else 0.0
    before = loads[after - 1] if after else float(worker.kv_tokens)
    share = (seconds - before_at) / (times[after] - before_at)
    return max(0.0, before + share * (loads[after] - before))


def _starting(member: MemberSeen, known: Card | None) -> Card:
    """Return the card of a worker that has a lease and that no leader shows now."""
    card = {**(known or {}), "role": member.role, "address": member.address, "state": "starting"}
    card.pop("gone_at", None)
    return card
