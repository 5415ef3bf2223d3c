"""The engine's interface: it loads a model and computes a worker's forward passes.

A worker's shell holds one :class:`Backend` and does not import torch. A backend holds the model and
its paged KV. It computes the plans it is given and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass, PassResult
from headway.request import StreamKey

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a loaded model, from which its KV pool is chosen."""

    kv_bytes_per_token: int
    max_model_len: int
    free_bytes: int | None
    """Free memory of the device with the weights loaded; None on a CPU."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Constants of a loaded engine, of all DP units together."""

    num_blocks: int
    """KV blocks on the device."""
    num_host_blocks: int
    """KV blocks in host memory; 0: preempted requests are computed again."""
    block_size: int
    """Tokens per KV block."""
    kv_bytes_per_token: int
    max_model_len: int
    """Tokens of prompt and output that the model computes correctly."""
    eos_token_ids: tuple[int, ...]
    dtype: str
    """Type of the KV: "float32", "bfloat16" or "float16"."""
    kernels: str = "none"
    """Name of the kernels in use, for the log."""
    swaps_beside: bool = False
    """True if KV comes back from host memory while a pass runs."""
    holds_whole_kv: bool = True
    """True if this process can send and take KV; False for a share of a group."""

    def kv_num_bytes(self, num_blocks: int) -> int:
        """Return the size of ``num_blocks`` blocks."""
        return num_blocks * self.block_size * self.kv_bytes_per_token


class PassFailure(HeadwayError):  # noqa: N818 (an outcome of a pass, as PassResult is)
    """The failure of a forward pass because of the requests ``keys``; run it again without them."""

    def __init__(self, keys: Sequence[StreamKey], message: str) -> None:
        super().__init__(Code.INTERNAL, message)
        self.keys = tuple(keys)


class KvSink(Protocol):
    """A writer of one request's KV into blocks."""

    def feed(self, data: Buffer) -> None:
        """Take the next bytes; HeadwayError (INVALID_ARGUMENT) for too many."""

    def finish(self) -> None:
        """Check that all bytes have come; HeadwayError (INVALID_ARGUMENT) for too few."""


class Backend(Protocol):
    """A loaded model with its KV blocks.

    One thread calls ``run``. Other threads may meanwhile read and write the KV of blocks that the
    pass does not use. KV travels as (layers, 2, tokens, KV heads, head size) in C order, keys
    before values, little-endian.
    """

    @property
    def info(self) -> EngineInfo:
        """Return the engine's constants."""

    def expect(self, forward_pass: ForwardPass) -> None:
        """Announce a pass before it is queued for ``run``.

        Its ``swapped_out`` blocks may already belong to others: KV written into them must wait
        until the pass has saved the old contents.
        """

    def run(self, forward_pass: ForwardPass) -> PassResult:
        """Compute a plan and draw the tokens it asks for.

        A ``PENDING`` token is the one that the pass before drew for that request. Raises
        PassFailure with the requests at fault: an inconsistent item (nothing was computed) or
        logits that are not finite. The pass may then be run without them.
        """

    def kv_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return the wire's shape of ``num_blocks`` blocks."""

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        """Yield the blocks' KV in pieces of at most 1 MiB, each read when it is asked for."""

    def kv_writer(
        self,
        block_ids: Sequence[int],
        shape: Sequence[int],
        dtype: str,
        num_tokens: int,
        *,
        first_token: int = 0,
        to_host: bool = False,
    ) -> KvSink:
        """Return a sink for the KV of tokens ``first_token`` to ``num_tokens - 1``.

        ``shape`` and ``dtype`` are the sender's. Raises HeadwayError (INVALID_ARGUMENT) for KV
        that these blocks cannot hold.
        """

    def close(self) -> None:
        """Release everything; writers that wait for a pass continue."""
