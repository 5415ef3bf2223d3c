"""What a fake cluster consists of: workers, and KV on its way between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headway.cluster import WorkerInfo
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    RefuseKv,
    StartTransfer,
)
from headway.forward_pass import ForwardPass
from headway.request import StreamKey
from tests.fakes.paged import PagedFake


@dataclass
class FakeWorker:
    """One life of a worker process."""

    info: WorkerInfo
    core: WorkerCore
    model: PagedFake
    stream: int = 0  # the scheduler's, by its number; reports go out on the newest alone
    passes: deque[ForwardPass] = field(default_factory=deque)
    transfers: deque[StartTransfer] = field(default_factory=deque)
    answers: dict[StreamKey, AcceptKv | AcknowledgeKv | RefuseKv] = field(default_factory=dict)


@dataclass
class Transfer:
    """KV on its way between two lives of two workers."""

    source: FakeWorker
    target: FakeWorker
    start: StartTransfer
    blocks: tuple[int, ...] | None  # None: acknowledged without
