"""The KV of a worker's ranks: each keeps some of the heads, on the device and in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from headway.forward_pass import ForwardPass
from headway_vllm.kv import HostBlocks, VllmKvStore, planes_of
from headway_vllm.plans import NULL_BLOCKS
from headway_vllm.ranks import Ranks
from services.worker.engine.kv.pool import DTYPES, KvShape, KvStore


class KvOfRank:
    """The KV that this process keeps."""

    def __init__(
        self,
        attention: str,
        caches: Sequence[torch.Tensor],
        shape: KvShape,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int,
    ) -> None:
        """``caches``: see ``planes_of``; ``shape``: of the heads that are kept here."""
        self.host = HostBlocks(caches, num_host_blocks)
        planes = planes_of(attention, shape, block_size, caches)
        hosted = planes_of(attention, shape, block_size, self.host.blocks)
        self.is_known = planes is not None
        """False where the layout of a block is not known: nobody may read or write it here."""
        self.store = VllmKvStore(shape, num_blocks, block_size, planes or (), NULL_BLOCKS)
        self.host_store = VllmKvStore(shape, num_host_blocks, block_size, hosted or ())

    def read(self, in_host: bool, first: int, stop: int, slots: np.ndarray) -> memoryview:
        """Return the bytes of ``KvStore.read_planes``, of the heads that are here."""
        store = self.host_store if in_host else self.store
        planes = store.read_planes(first, stop, torch.from_numpy(slots))
        return planes.view(torch.uint8).flatten().numpy().data

    def write(self, in_host: bool, plane: int, slots: np.ndarray, data: bytearray) -> bytes:
        """Write as ``KvStore.write_plane`` does; return nothing, when it has been done."""
        store = self.host_store if in_host else self.store
        store.write_plane(plane, torch.from_numpy(slots), data)
        return b""


class SharedKv:
    """The KV of all ranks, as rank 0 reads and writes it."""

    def __init__(self, own: KvOfRank, ranks: Ranks) -> None:
        shape = own.store.shape
        sizes = (shape, own.store.block_size, own.store.num_blocks, own.host_store.num_blocks)
        ranks.ask("keep_kv", sizes)
        ranks.wait()
        self._ranks = ranks
        self._host = own.host
        self.host = self
        self.store = SharedKvStore(own.store, ranks, in_host=False)
        self.host_store = SharedKvStore(own.host_store, ranks, in_host=True)

    def swap(self, forward_pass: ForwardPass) -> None:
        """See ``HostBlocks``; it ends when every rank has copied."""
        swaps = replace(forward_pass, items=(), hidden=(), ended=())
        self._ranks.ask("swap", (swaps,))
        self._host.swap(forward_pass)
        self._ranks.wait()


class SharedKvStore(KvStore):
    """A store whose heads lie in the ranks, in their order."""

    def __init__(self, own: VllmKvStore, ranks: Ranks, *, in_host: bool) -> None:
        shape = replace(own.shape, num_kv_heads=own.shape.num_kv_heads * ranks.size)
        super().__init__(shape, own.num_blocks, own.block_size)
        self._own = own
        self._ranks = ranks
        self._in_host = in_host
        self.writable = own.writable

    def read_planes(self, first: int, stop: int, slots: torch.Tensor) -> torch.Tensor:
        """See ``KvStore``."""
        own, dtype = self._own.read_planes(first, stop, slots), DTYPES[self.shape.dtype]
        question = ("read", (self._in_host, first, stop, slots.numpy()))
        others = self._ranks.of_kv([question] * (self._ranks.size - 1))
        shares = [torch.frombuffer(bytearray(each), dtype=dtype).view(own.shape) for each in others]
        return torch.cat([own, *shares], dim=2)

    def write_plane(self, plane: int, slots: torch.Tensor, data: bytearray) -> None:
        """See ``KvStore``."""
        self.writable.wait()
        own = self._own.shape.num_kv_heads
        shares = [
            bytearray(share.contiguous().view(torch.uint8).flatten().numpy().data)
            for share in self._plane_of(data, len(slots)).split(own, dim=1)
        ]
        self._own.write_plane(plane, slots, shares[0])
        where = (self._in_host, plane, slots.numpy())
        self._ranks.of_kv([("write", (*where, share)) for share in shares[1:]])
