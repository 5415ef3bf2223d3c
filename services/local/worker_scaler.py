"""Workers of a local cluster that come and go while it runs: the supervisor's own service."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import grpc

from headway.errors import HeadwayError, invalid
from protos import supervisor_pb2, supervisor_pb2_grpc
from services.local.process_spec import ProcessSpec
from services.local.role_change import keep_role, set_role
from services.local.standby_workers import StandbyWorkers, free_id
from services.local.supervised import SupervisedProcess
from services.local.supervisor import Supervisor
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks
from services.runtime.membership import MembershipLease
from services.runtime.server import GrpcServer
from services.runtime.store import Member

T = TypeVar("T")
MAX_WORKERS = 64
NUM_STARTS = 64

_Context = grpc.aio.ServicerContext[Any, Any]


class WorkerScaler(supervisor_pb2_grpc.SupervisorServicer):
    """The servicer that starts and ends workers of ``roles`` on this machine.

    ``make_spec`` makes the worker of a role and a service id.

    A worker that goes gets SIGTERM: it tells the scheduler, and ends when it holds nothing. Those
    that stand by (``standby``) come first; how long each took from its order is remembered.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        config: ServiceConfig,
        roles: Iterable[str],
        make_spec: Callable[[str, str], ProcessSpec],
        standby: StandbyWorkers | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._config = config
        self._roles = tuple(roles)
        self._make_spec = make_spec
        self._standby = standby
        self._beside: set[asyncio.Task[Any]] = set()
        self._starts: deque[supervisor_pb2.WorkerStart] = deque(maxlen=NUM_STARTS)
        self._num_starts = 0
        self._draining: dict[SupervisedProcess, asyncio.Task[None]] = {}
        self._changing: set[SupervisedProcess] = set()
        self._undo = AsyncExitStack()

    async def start(self) -> None:
        """Listen, and be found by membership."""
        store = await self._supervisor.machine.connect(self._config)
        self._undo.push_async_callback(store.close)
        server = GrpcServer(self._config)
        server.add(self)
        address = await server.start()
        self._undo.push_async_callback(server.stop, 0.0)
        await server.set_serving(True)
        lease = MembershipLease(store, Member("supervisor", self._config.service_id, address))
        lease.start()
        self._undo.push_async_callback(lease.stop)
        if self._standby is not None:
            self._standby.start()
            self._undo.push_async_callback(self._standby.stop)

    @property
    def draining(self) -> Collection[SupervisedProcess]:
        """Workers that were told to go and are not gone."""
        return self._draining.keys()

    @property
    def changing(self) -> Collection[SupervisedProcess]:
        """Workers that were told another role, or their own again, and have not said that it is."""
        return self._changing

    async def stop(self) -> None:
        """Take no more orders; processes stay, and those that drain are waited for."""
        await self._undo.aclose()
        await end_tasks(*self._beside)
        await asyncio.gather(*self._draining.values())

    def scale(self, role: str, num_workers: int) -> None:
        """Start or drain until so many are left; returns at once."""
        if role not in self._roles:
            raise invalid("role", role, f"one of {', '.join(self._roles)}")
        if num_workers > MAX_WORKERS:
            raise invalid("num_workers", num_workers, f"from 0 to {MAX_WORKERS}")
        there = self._there(role)
        for _ in range(num_workers - len(there)):
            self._do_beside(self._measure(*self._order(role)))
        # those that were given up go first, then the youngest
        order = sorted(enumerate(there), key=lambda each: (not each[1].is_given_up, -each[0]))
        for _, process in order[: max(0, len(there) - num_workers)]:
            process.show("draining")
            self._draining[process] = asyncio.create_task(self._drain(process))

    async def change_role(self, source: str, target: str, num_workers: int) -> int:
        """Tell those that serve, the youngest, all at once; return how many took the new role.

        One whose last order is not answered is left out: of two orders the older may come last.
        An order goes on if its caller waits no longer.
        """
        for role in (source, target):
            if role not in self._roles:
                raise invalid("role", role, f"one of {', '.join(self._roles)}")
        ready = [p for p in self._there(source) if p.address and p not in self._changing]
        chosen = ready[::-1][:num_workers]
        self._changing.update(chosen)
        asked = [self._do_beside(self._set_role(each, target)) for each in chosen]
        return sum(await asyncio.gather(*map(asyncio.shield, asked)))

    async def _set_role(self, process: SupervisedProcess, role: str) -> bool:
        if has_changed := await set_role(process, role, self._config):
            self._changing.remove(process)
            process.show(f"is a {role} worker now")
        else:
            self._do_beside(self._keep_role(process))
        return has_changed

    async def _keep_role(self, process: SupervisedProcess) -> None:
        await keep_role(process, self._config)
        self._changing.remove(process)

    def _do_beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let work go on until it is done, or orders are taken no more."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    def _order(self, role: str) -> tuple[SupervisedProcess, bool]:
        """Add one worker of a role; return it, and whether it had stood by."""
        warm = None if self._standby is None else self._standby.take(role, self._make_spec)
        if warm is not None:
            return warm, True
        return self._supervisor.add(self._make_spec(role, free_id(self._supervisor, role))), False

    async def _measure(self, process: SupervisedProcess, warm: bool) -> None:
        """Time the start of a worker, from its order until it is ready."""
        loop, pid = asyncio.get_running_loop(), process.pid
        ordered_at, spec = loop.time(), process.spec
        try:
            await process.serving()
        except HeadwayError:  # given up, which its log tells
            return
        self._num_starts += 1
        start = supervisor_pb2.WorkerStart(
            number=self._num_starts,
            worker_id=spec.service_id,
            role=spec.role,
            seconds=loop.time() - ordered_at,
            warm=warm and process.pid == pid,
        )
        self._starts.append(start)
        process.show(f"ready after {start.seconds:.2f} s{', stood by' if start.warm else ''}")

    async def _drain(self, process: SupervisedProcess) -> None:
        try:
            await self._supervisor.remove(process)
            process.show("gone")
        finally:
            del self._draining[process]

    def _there(self, role: str) -> list[SupervisedProcess]:
        """Return the workers of this role, oldest first, without those that drain."""
        return [
            process
            for process in self._supervisor.processes
            if process.spec.role == role and process not in self._draining
        ]

    def _replicas(self) -> supervisor_pb2.Replicas:
        return supervisor_pb2.Replicas(
            num_workers={role: len(self._there(role)) for role in self._roles},
            num_draining=Counter(process.spec.role for process in self._draining),
            starts=self._starts,
            num_standby=0 if self._standby is None else self._standby.num_ready,
        )

    async def Scale(  # noqa: N802 (the proto's name)
        self, request: supervisor_pb2.ScaleRequest, context: _Context
    ) -> supervisor_pb2.Replicas:
        """See ``protos/supervisor.proto``."""
        self.scale(request.role, request.num_workers)
        return self._replicas()

    async def ChangeRole(  # noqa: N802 (the proto's name)
        self, request: supervisor_pb2.ChangeRoleRequest, context: _Context
    ) -> supervisor_pb2.ChangeRoleReply:
        """See ``protos/supervisor.proto``."""
        num_changed = await self.change_role(request.source, request.target, request.num_workers)
        return supervisor_pb2.ChangeRoleReply(num_changed=num_changed)

    async def GetReplicas(  # noqa: N802 (the proto's name)
        self, request: supervisor_pb2.GetReplicasRequest, context: _Context
    ) -> supervisor_pb2.Replicas:
        """See ``protos/supervisor.proto``."""
        return self._replicas()
