"""What kernels must give, in float64, over pools of random KV."""

from __future__ import annotations

from dataclasses import dataclass
from shutil import which

import torch
from hypothesis import strategies as st

HAS_COMPILER = any(map(which, ("c++", "g++", "clang++")))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
dtypes = st.sampled_from(list(DTYPES))
head_sizes = st.sampled_from([12, 32, 64, 80, 96, 128, 256])
seeds = st.integers(0, 2**16)


def close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """By the norm of the difference, and by no element far off."""
    result, tolerance = result.double(), DTYPES[result.dtype]
    apart = (result - expected).norm() <= tolerance * expected.norm()
    return bool(apart) and bool(((result - expected).abs() <= 10 * tolerance + 1e-9).all())


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype).to(DEVICE)


@dataclass(frozen=True)
class Pool:
    """One layer's pool of random KV with the tables of some requests; the rest holds NaN."""

    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    block_size: int

    @staticmethod
    def of(lengths: list[int], heads: int, size: int, block_size: int, dtype: torch.dtype) -> Pool:
        counts = [-(-length // block_size) for length in lengths]
        blocks = torch.randperm(sum(counts) + 2, dtype=torch.int32)
        shape = ((sum(counts) + 2) * block_size, heads, size)
        keys, values = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        # Beyond a request's blocks a table names a block that does not exist.
        tables = torch.full((len(lengths), max(counts) + 1), 2**20, dtype=torch.int32)
        pool = Pool(keys, values, tables, torch.tensor(lengths, dtype=torch.int32), block_size)
        for n, count in enumerate(counts):
            tables[n, :count] = blocks[sum(counts[:n]) :][:count]
            slots = pool.slots(n)
            keys[slots], values[slots] = (torch.randn(2, len(slots), heads, size)).to(dtype)
        return pool.on(DEVICE)

    def on(self, device: str) -> Pool:
        keys, values = self.keys.to(device), self.values.to(device)
        return Pool(keys, values, self.tables.to(device), self.lengths.to(device), self.block_size)

    def slots(self, request: int) -> torch.Tensor:
        where = torch.arange(int(self.lengths[request]), device=self.tables.device)
        return self.tables[request, where // self.block_size].long() * self.block_size + (
            where % self.block_size
        )

    def attention(self, query: torch.Tensor, request: int, scale: float) -> torch.Tensor:
        """``query`` (rows, heads, size): the last rows of the request, in float64."""
        slots, rows = self.slots(request), len(query)
        repeats = query.shape[1] // self.keys.shape[1]
        keys = self.keys[slots].double().repeat_interleave(repeats, 1)
        values = self.values[slots].double().repeat_interleave(repeats, 1)
        scores = torch.einsum("rhd,thd->hrt", query.double(), keys) * scale
        last = torch.arange(len(slots) - rows, len(slots), device=slots.device)
        hidden = torch.arange(len(slots), device=slots.device) > last[:, None]
        return torch.einsum(
            "hrt,thd->rhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values
        )


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = heads.double().chunk(2, -1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def normed(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    heads = heads.double()
    return heads * (heads.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
