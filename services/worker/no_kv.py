"""The KV of an engine that plans its own passes and shows none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headway.engine import EngineInfo, IncomingKv, KvSink
from headway.errors import Code, HeadwayError


class NoKv:
    """A ``KvAccess`` that refuses everything (HeadwayError)."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info

    def kv_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Raise HeadwayError."""
        raise _no_kv()

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        """Raise HeadwayError."""
        raise _no_kv()

    def kv_writer(self, kv: IncomingKv) -> KvSink:
        """Raise HeadwayError."""
        raise _no_kv()


def _no_kv() -> HeadwayError:
    return HeadwayError(Code.FAILED_PRECONDITION, "this worker's engine sends and takes no KV")
