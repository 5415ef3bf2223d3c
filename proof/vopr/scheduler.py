"""A scheduler's process: a candidate for the lead, and its terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Elected,
    GatewayConnected,
    GatewayDisconnected,
    Learned,
    Persist,
    SavedRequest,
    SchedulerAction,
    SchedulerEvent,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.places import Moving
from headway.core.worker.leaders import is_superseded
from headway.messages import ControlHello, Dispatch, GatewayHello, HandoffResult, Snapshot
from headway.request import StreamKey
from proof.vopr.network import End, Packed, packed, parsed
from proof.vopr.process import SimulatedDriver, SimulatedProcess
from proof.vopr.store import Lease, LeasedMember
from proof.vopr.world import MODEL, World
from services.runtime import wire
from services.scheduler.records import (
    pack_key,
    pack_learned,
    pack_request,
    unpack_learned,
    unpack_requests,
)

WATCH_INTERVAL, ABSENCE_GRACE = 0.25, 2.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_JOURNAL_PAUSE = 0.5
_MARGIN = 0.1


class SchedulerProcess(SimulatedProcess):
    """One life of a scheduler, as ``services.scheduler`` shells its core."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        super().__init__(world.kernel, name, skew)
        self._world = world
        self._num_terms = 0
        self._token: int | None = None
        self._held_until = 0.0
        self._seen = 0
        self._former_id = ""
        self.term: SimulatedTerm | None = None
        self._candidate_id = self._new_candidate()
        world.network.listen(self, "Connect", self._connect)
        self._ask_for_lease()

    def _new_candidate(self) -> str:
        self._num_terms += 1
        return f"{self.name}-{self._world.rng.getrandbits(32):08x}"

    # --- leadership (``services.scheduler.leadership``) -------------------------------

    def _ask_for_lease(self) -> None:
        ttl, asked_at, store = self._world.times.leader_ttl, self.now(), self._world.store
        former_id, self._former_id = self._former_id, ""
        patience = ttl / 3
        if self._token is not None:
            patience = min(patience, max(0.005, self._surely_until - asked_at))
        candidate_id, seen = self._candidate_id, self._seen

        def acquire() -> tuple[int | None, Lease | None]:
            store.release(former_id)
            return store.acquire(candidate_id, self.name, ttl, seen), store.leader()

        def answered(found: tuple[int | None, Lease | None]) -> None:
            token, leader = found
            self._seen = max(self._seen, token or 0, leader.token if leader is not None else 0)
            self._answered(token, asked_at)

        def failed() -> None:
            self._former_id = self._former_id or former_id
            self._not_answered()

        store.ask(self, acquire, answered, failed, within=patience)

    @property
    def _surely_until(self) -> float:
        return self._held_until - self._world.times.leader_ttl * _MARGIN

    def _not_answered(self) -> None:
        if self.now() >= self._surely_until - 0.005:
            self._step_down()
        self.after(self._world.times.leader_ttl / 20, self._ask_for_lease)

    def _answered(self, token: int | None, asked_at: float) -> None:
        ttl = self._world.times.leader_ttl
        if token is None:
            self._step_down()
            self.after(ttl / 10, self._ask_for_lease)
            return
        self._held_until = asked_at + ttl
        if token != self._token:
            self._step_down(keeps_name=True)
            self._token = token
            self._world.hit("a leader is elected")
            self._begin(token)
        self.after(ttl / 3, self._ask_for_lease)

    def _begin(self, token: int) -> None:
        store = self._world.store

        def read() -> tuple[list[LeasedMember], tuple[dict[bytes, bytes], dict[bytes, bytes]]]:
            return store.members("worker"), store.read_journal()

        def begin(
            found: tuple[list[LeasedMember], tuple[dict[bytes, bytes], dict[bytes, bytes]]],
        ) -> None:
            if self._token == token and self.term is None:
                saved, learned = unpack_requests(found[1][0]), unpack_learned(found[1][1])
                ahead = self._world.now() - self.now()  # the store's clock is right
                self.term = SimulatedTerm(self, self._world, token, ahead)
                by_our_clock = tuple(each.later(-ahead) for each in saved)
                self.term.begin(found[0], by_our_clock, learned)

        store.ask(self, read, begin, self._step_down)

    def _step_down(self, *, keeps_name: bool = False) -> None:
        if self._token is None:
            return
        self._token = None
        if not keeps_name:
            self._former_id, self._candidate_id = self._candidate_id, self._new_candidate()
        term, self.term = self.term, None
        if term is not None:
            self._world.hit("a leader steps down")
            term.end()

    def kill(self) -> None:
        """End at once."""
        super().kill()
        self.term = None

    # --- gateways ---------------------------------------------------------------------

    def _connect(self, stream: End) -> None:
        stream.on_message = lambda message: self._greeted(stream, message)

    def _greeted(self, stream: End, message: Packed) -> None:
        hello = wire.FROM_GATEWAY.unpack(parsed(message), now=self.now())
        assert isinstance(hello, GatewayHello), "a gateway greets first"
        if self.term is None:
            stream.close("this scheduler stands by")
        else:
            self.term.gateway_connected(hello.gateway_id, stream)


class SimulatedTerm:
    """A term, from the election until the lead is lost, as ``services.scheduler.term`` has it."""

    def __init__(self, process: SchedulerProcess, world: World, token: int, ahead: float) -> None:
        self._process = process
        self._world = world
        self.token = token
        settings = replace(world.policies.scheduler, persists=True, measures_work=True)
        self._hello = ControlHello(process.name, token, wanted_reports(settings))
        self.core = SchedulerCore(settings)
        self._driver: SimulatedDriver[SchedulerEvent, SchedulerAction] = SimulatedDriver(
            process, self.core, self._perform
        )
        self._journal = SimulatedJournal(process, world, token, ahead)
        self._gateways: dict[str, End] = {}
        self._links: dict[str, SimulatedWorkerLink] = {}
        self._known: dict[str, LeasedMember] = {}
        self._missed_at: dict[str, float] = {}
        self._ended = False

    def begin(
        self,
        members: list[LeasedMember],
        saved: tuple[SavedRequest, ...],
        learned: tuple[Learned, ...],
    ) -> None:
        """Start from the last leader's records, and follow the members."""
        if any(each.target is not None for each in saved):
            self._world.hit("a takeover with moves in flight")
        if saved:
            self._world.hit("a takeover with live requests")
        worker_ids = tuple(member.member_id for member in members)
        self._post(Elected(self.token, worker_ids, saved, learned))
        self._compare(members)
        self._watch()
        self._process.after(1.0, self._report_fleet)

    def end(self) -> None:
        """Stop all communication."""
        if any(isinstance(each.place, Moving) for each in self.core._state.tracked.values()):
            self._world.hit("a leader steps down with moves in flight")
        self._ended = True
        self._driver.close()
        self._journal.close()
        for stream in self._gateways.values():
            stream.close("this scheduler stands by")
        for link in self._links.values():
            link.close()

    def _post(self, event: SchedulerEvent) -> None:
        if not self._ended:
            self._driver.post(event)

    # --- members ----------------------------------------------------------------------

    def _watch(self) -> None:
        if self._ended:
            return
        store = self._world.store

        def again() -> None:
            self._process.after(WATCH_INTERVAL, self._watch)

        def found(members: list[LeasedMember]) -> None:
            if not self._ended:
                self._compare(members)
                again()

        def failed() -> None:
            self._missed_at.clear()
            again()

        store.ask(self._process, partial(store.members, "worker"), found, failed)

    def _compare(self, members: list[LeasedMember]) -> None:
        now = self._process.now()
        present = {member.member_id: member for member in members}
        for member_id, member in list(self._known.items()):
            if member_id in present:
                self._missed_at.pop(member_id, None)
                if present[member_id].address == member.address:
                    continue
            elif now - self._missed_at.setdefault(member_id, now) < ABSENCE_GRACE:
                continue
            self._missed_at.pop(member_id, None)
            del self._known[member_id]
            self._links.pop(member_id).close()
            self._post(WorkerGone(member_id, f"worker {member_id} has left the cluster"))
        for member_id, member in present.items():
            if member_id not in self._known:
                self._known[member_id] = member
                self._links[member_id] = SimulatedWorkerLink(
                    self._process, self._world, member, self._hello, self._post
                )

    # --- gateways ---------------------------------------------------------------------

    def gateway_connected(self, gateway_id: str, stream: End) -> None:
        """Take a gateway's newer stream; it ends the older one."""
        older = self._gateways.pop(gateway_id, None)
        if older is not None:
            older.close("a newer stream has been opened")
        self._gateways[gateway_id] = stream
        stream.on_message = self._from_gateway
        stream.on_break = lambda _: self._gateway_gone(gateway_id, stream)
        self._post(GatewayConnected(gateway_id))

    def _from_gateway(self, message: Packed) -> None:
        for told in wire.FROM_GATEWAY.unpack_all(parsed(message), now=self._process.now()):
            assert not isinstance(told, GatewayHello), "a gateway greets once"
            self._post(told)

    def _gateway_gone(self, gateway_id: str, stream: End) -> None:
        if self._gateways.get(gateway_id) is stream:
            del self._gateways[gateway_id]
            self._post(GatewayDisconnected(gateway_id))

    # --- actions ----------------------------------------------------------------------

    def _perform(self, action: SchedulerAction) -> None:
        match action:
            case SendToWorker(worker_id, message):
                link = self._links.get(worker_id)
                if link is not None:
                    repeatable = isinstance(message, Dispatch)
                    order = wire.TO_WORKER.pack(message, now=self._process.now())
                    link.send(packed(order), repeatable=repeatable)
            case SendToGateway(gateway_id, message):
                stream = self._gateways.get(gateway_id)
                if stream is not None:
                    stream.send(packed(wire.TO_GATEWAY.pack(message)))
            case Persist():
                self._journal.write(action)

    def _report_fleet(self) -> None:
        if self._ended:
            return
        self._process.after(1.0, self._report_fleet)
        for model, fleet in (self.core.fleets(now=self._process.now()) or {}).items():
            if model == MODEL:
                message = packed(wire.pack_fleet(fleet, model))
                self._world.network.call(self._process, "a0", "ReportFleet", message)


class SimulatedWorkerLink:
    """The control stream to one worker, as ``services.scheduler.worker_link`` keeps it."""

    def __init__(
        self,
        process: SchedulerProcess,
        world: World,
        member: LeasedMember,
        hello: ControlHello,
        post: Callable[[SchedulerEvent], None],
    ) -> None:
        self._process = process
        self._world = world
        self._member = member
        self._hello = replace(hello, worker_id=member.member_id)
        self._post = post
        self._stream: End | None = None
        self._closed = False
        self._opened_at = 0.0
        self._pause = _SHORTEST_PAUSE
        self._dial()

    def send(self, order: Packed, *, repeatable: bool) -> None:
        """Send an order, or drop it while there is no stream."""
        if self._stream is not None:
            self._stream.send(order, repeatable=repeatable)

    def close(self) -> None:
        """Close the stream for good."""
        self._closed = True
        if self._stream is not None:
            self._stream.close("the term is over")

    def _dial(self) -> None:
        if not self._closed:
            dial = self._world.network.dial
            self._opened_at = self._process.now()
            dial(self._process, self._member.address, "Control", self._opened, self._gone)

    def _opened(self, stream: End) -> None:
        if self._closed:
            stream.close("the term is over")
            return
        self._stream = stream
        stream.on_message = self._take
        stream.on_break = self._gone
        stream.send(packed(wire.TO_WORKER.pack(self._hello, now=self._process.now())))

    def _gone(self, reason: str) -> None:
        if self._closed:
            return
        self._stream = None
        worker_id = self._member.member_id
        if not is_superseded(reason):
            self._post(WorkerGone(worker_id, f"worker {worker_id}: {reason}"))
        is_long = self._process.now() - self._opened_at >= _LONGEST_PAUSE
        self._pause = _SHORTEST_PAUSE if is_long else min(2 * self._pause, _LONGEST_PAUSE)
        self._process.after(self._pause, self._dial)

    def _take(self, packed_message: Packed) -> None:
        message = wire.FROM_WORKER.unpack(parsed(packed_message))
        worker_id = self._member.member_id
        if isinstance(message, Snapshot) and message.info.worker_id != worker_id:
            assert self._stream is not None, "a message comes over a stream"
            self._stream.close("another worker answers")
            self._gone("another worker answers")
            return
        if isinstance(message, HandoffResult) and not message.ok:
            self._world.hit("a handoff fails")
        self._post(WorkerReported(worker_id, message))


class SimulatedJournal:
    """A term's records, written one batch at a time, as ``services.scheduler.journal`` does."""

    def __init__(self, process: SchedulerProcess, world: World, token: int, ahead: float) -> None:
        self._process = process
        self._ahead = ahead
        self._store = world.store
        self._token = token
        self._requests: dict[StreamKey, SavedRequest | None] = {}
        self._learned: dict[str, Learned] = {}
        self._is_writing = False
        self._closed = False

    def write(self, persist: Persist) -> None:
        """Queue changes, and write them with all others of this moment."""
        if self._closed:
            return
        for saved in persist.saved:
            self._requests[saved.key] = saved
        for key in persist.ended:
            self._requests[key] = None
        for learned in persist.learned:
            self._learned[learned.model] = learned
        if not self._is_writing:
            self._is_writing = True
            self._process.after(0.0, self._write)

    def close(self) -> None:
        """Stop writing; a write on its way may still arrive."""
        self._closed = True

    def _write(self) -> None:
        if self._closed or not (self._requests or self._learned):
            self._is_writing = False
            return
        requests, self._requests = self._requests, {}
        learned, self._learned = self._learned, {}
        changed = {
            pack_key(saved.key): pack_request(saved.later(self._ahead))
            for saved in requests.values()
            if saved is not None
        }
        removed = [pack_key(key) for key, saved in requests.items() if saved is None]
        models = {model.encode(): pack_learned(each) for model, each in learned.items()}

        def wrote(is_ours: bool) -> None:
            self._closed = self._closed or not is_ours
            self._write()

        def failed() -> None:
            self._requests = requests | self._requests
            self._learned = learned | self._learned
            self._process.after(_JOURNAL_PAUSE, self._write)

        store, token = self._store, self._token
        store.ask(
            self._process,
            lambda: store.write_journal(token, changed, removed, models),
            wrote,
            failed,
        )
