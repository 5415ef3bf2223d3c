"""vLLM's KV as Headway's wire and host memory read and write it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import torch

from headway.cluster import TOKEN_LAYOUT
from headway.forward_pass import ForwardPass, Swap
from headway_vllm.plans import NULL_BLOCKS
from services.worker.engine.kv.pool import DTYPES, KvShape, KvStore

_PLAIN = ("FLASH_ATTN", "TRITON_ATTN")
"""Attentions whose blocks are (KV heads, tokens, key and value)."""


def planes_of(
    attention: str, shape: KvShape, block_size: int, caches: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor] | None:
    """Return views of each layer's keys and values: (blocks, KV heads, tokens, head size).

    ``caches``: each layer's blocks, as an ``attention`` of vLLM keeps them. None where the layout
    is not known: a view would read KV wrongly, and nothing would notice.
    """
    heads, dim = shape.num_kv_heads, shape.head_dim
    block = (heads, block_size, 2 * dim)
    if any(kv.shape[1:] != block or kv.dtype != DTYPES[shape.dtype] for kv in caches):
        return None
    planes: list[torch.Tensor] = []
    for kv in caches:
        if attention in _PLAIN:
            planes += kv.split(dim, -1)
        elif attention == "CPU_ATTN":  # keys are transposed, and lie before all values of a head
            both = kv.view(kv.shape[0], heads, 2, block_size * dim)
            keys = both[:, :, 0].unflatten(-1, (dim, block_size)).transpose(2, 3)
            planes += [keys, both[:, :, 1].unflatten(-1, (block_size, dim))]
        else:
            return None
    return planes


class VllmKvStore(KvStore):
    """Blocks of vLLM's attention, converted from and to the wire's ``tokens``."""

    layout = TOKEN_LAYOUT

    def __init__(
        self,
        shape: KvShape,
        num_blocks: int,
        block_size: int,
        planes: Sequence[torch.Tensor],
        first: int = 0,
    ) -> None:
        """``planes``: see ``planes_of``; block ``first`` of them is our block 0."""
        super().__init__(shape, num_blocks, block_size)
        self._first = first
        self.writable = Event()
        self.writable.set()
        self._planes = planes

    def read_planes(self, first: int, stop: int, slots: torch.Tensor) -> torch.Tensor:
        """See ``KvStore``."""
        blocks, places = self._where(slots)
        planes = [plane[blocks, :, places] for plane in self._planes[first:stop]]
        return torch.stack(planes).cpu().contiguous()

    def write_plane(self, plane: int, slots: torch.Tensor, data: bytearray) -> None:
        """See ``KvStore``."""
        self.writable.wait()
        blocks, places = self._where(slots)
        target = self._planes[plane]
        target[blocks, :, places] = self._plane_of(data, len(slots)).to(target.device)

    def _where(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return slots // self.block_size + self._first, slots % self.block_size


class HostBlocks:
    """Host memory for KV of preempted requests and of prefixes, in blocks of vLLM's layout."""

    def __init__(self, caches: Sequence[torch.Tensor], num_blocks: int) -> None:
        self._caches = caches
        self.blocks = [
            torch.empty((num_blocks, *kv.shape[1:]), dtype=kv.dtype, pin_memory=kv.is_cuda)
            for kv in caches
        ]

    def swap(self, forward_pass: ForwardPass) -> None:
        """Copy what leaves, then what comes back."""
        for swap in (*forward_pass.swapped_out, *forward_pass.saved):
            device, host = _places(swap)
            for kv, kept in zip(self._caches, self.blocks, strict=True):
                kept[host] = kv[device].cpu()
        for swap in forward_pass.swapped_in:
            device, host = _places(swap)
            for kv, kept in zip(self._caches, self.blocks, strict=True):
                kv[device] = kept[host].to(kv.device)


def _places(swap: Swap) -> tuple[torch.Tensor, torch.Tensor]:
    count = min(len(swap.blocks), len(swap.host_blocks))
    device = torch.tensor(swap.blocks[:count], dtype=torch.int64) + NULL_BLOCKS
    return device, torch.tensor(swap.host_blocks[:count], dtype=torch.int64)
