"""KV on its way from one simulated instance: offers, rounds of a request that runs on, the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway.blocks import blocks_for
from headway.core.worker.events import (
    AcknowledgeKv,
    KvAborted,
    KvArrived,
    KvContinued,
    KvOffered,
    KvQuestion,
    KvSent,
    PlanningAction,
    RefuseKv,
    StartTransfer,
    TransferEnded,
    WorkerEvent,
)
from headway.cost.schema import Profile
from headway.messages import KvHeader
from headway.request import StreamKey
from headway.sim.kernel import Kernel
from headway.sim.network import Network


class Peer(Protocol):
    """An instance at one end of a link."""

    worker_id: str

    def post(self, event: WorkerEvent) -> None:
        """Tell it news."""

    def answer(self, question: KvQuestion) -> PlanningAction:
        """Return its answer to an offer, or to more of it."""


class Links(Protocol):
    """The time, the wires, and the instances at their ends."""

    @property
    def kernel(self) -> Kernel:
        """The time."""

    @property
    def network(self) -> Network:
        """Links to other instances."""

    def worker(self, worker_id: str) -> Peer | None:
        """Return another instance, if it lives."""


@dataclass(slots=True, eq=False)
class _Transfer:
    """A request on its way; ``num_known``: output tokens that the target has been told."""

    part: StartTransfer
    target: Peer | None = None
    num_known: int = 0
    under_way: bool = True
    stopped: bool = False


class Transfers:
    """The KV that one instance sends: a part at a time, each when the core asks for it."""

    def __init__(self, source: Peer, profile: Profile, links: Links) -> None:
        self._source = source
        self._profile = profile
        self._links = links
        self._open: dict[StreamKey, _Transfer] = {}

    def start(self, part: StartTransfer) -> None:
        """Offer a request's KV, or send on with what it has grown by since the last round."""
        key = part.request.key
        transfer = self._open.get(key)
        if transfer is None:
            transfer = self._open[key] = _Transfer(part)
        transfer.part, transfer.under_way = part, True
        network = self._links.network
        target_id = part.handoff.target_worker_id
        network.host.after(
            f"offer {target_id}", network.params.latency, lambda: self._offer(transfer)
        )

    def stop(self, key: StreamKey) -> None:
        """Stop a transfer: the target drops what it has after the round that is on its way."""
        transfer = self._open.get(key)
        if transfer is not None:
            transfer.stopped = True
            if not transfer.under_way:
                self._fail(transfer, "it ended, or lost its KV, on the way")

    def abandon(self) -> None:
        """Drop what targets have of this instance's finished rounds: it is gone."""
        for transfer in list(self._open.values()):
            if not transfer.under_way:
                self._drop(transfer)
        self._open.clear()

    # --- at the target ----------------------------------------------------------------

    def _offer(self, transfer: _Transfer) -> None:
        """Offer a part to the target, which reserves blocks; then the bytes travel."""
        part = transfer.part
        key, target_id = part.request.key, part.handoff.target_worker_id
        target = self._links.worker(target_id)
        if target is None or (transfer.target is not None and target is not transfer.target):
            self._end(transfer, "the target is gone")
            return
        answer = target.answer(self._question(transfer))
        if isinstance(answer, AcknowledgeKv):
            self._end(transfer)
        elif isinstance(answer, RefuseKv):
            self._fail(transfer, answer.error.message)
        else:
            transfer.target, transfer.num_known = target, len(part.request.output_token_ids)
            num_bytes = self._num_bytes(part)
            arrived = self._arrived
            self._links.network.transfer(
                self._source.worker_id, target_id, num_bytes, lambda: arrived(transfer, key)
            )

    def _question(self, transfer: _Transfer) -> KvQuestion:
        part = transfer.part
        if transfer.target is not None:
            output = part.request.output_token_ids[transfer.num_known :]
            return KvContinued(part.request.key, part.num_computed_tokens, output)
        num_blocks = blocks_for(part.num_computed_tokens, self._profile.block_size)
        return KvOffered(
            KvHeader(
                request=part.request,
                unit=part.handoff.target_unit,
                num_computed_tokens=part.num_computed_tokens,
                num_bytes=self._num_bytes(part),
                block_size=self._profile.block_size,
                dtype="simulated",
                shape=(1, 2, num_blocks * self._profile.block_size, 1, 1),
                more=part.more,
                fencing_token=part.handoff.fencing_token,
            )
        )

    def _num_bytes(self, part: StartTransfer) -> int:
        size = self._profile.block_size
        num_blocks = blocks_for(part.num_computed_tokens, size) - part.first_token // size
        return num_blocks * size * self._profile.kv_bytes_per_token

    def _arrived(self, transfer: _Transfer, key: StreamKey) -> None:
        target, source = transfer.target, self._source
        transfer.under_way = False
        assert target is not None, "what arrives was accepted"
        if self._links.worker(target.worker_id) is not target:
            self._end(transfer, "the target is gone")
        elif self._links.worker(source.worker_id) is not source:
            target.post(KvAborted(key))
        elif transfer.stopped:
            self._fail(transfer, "it ended, or lost its KV, on the way")
        elif transfer.part.more:
            source.post(KvSent(key))
        else:
            target.post(KvArrived(key))
            self._end(transfer)

    # --- the end ----------------------------------------------------------------------

    def _fail(self, transfer: _Transfer, message: str) -> None:
        self._drop(transfer)
        self._end(transfer, message)

    def _drop(self, transfer: _Transfer) -> None:
        target = transfer.target
        if target is not None and self._links.worker(target.worker_id) is target:
            target.post(KvAborted(transfer.part.request.key))

    def _end(self, transfer: _Transfer, error: str = "") -> None:
        if self._links.worker(self._source.worker_id) is not self._source:
            return
        handoff = transfer.part.handoff
        self._open.pop(handoff.key, None)
        self._source.post(
            TransferEnded(
                handoff.key, handoff.target_worker_id, handoff.target_unit, not error, error
            )
        )
