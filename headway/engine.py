"""The interfaces of engines; a worker's shell holds one and does not import torch.

A :class:`Backend` holds a model and its paged KV. It computes the plans it is given and decides
nothing. A :class:`PlanningEngine` takes requests, plans its own passes, and reports their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headway.cluster import TOKEN_LAYOUT, Adapter
from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass, PassResult
from headway.request import FinishReason, Request, StreamKey, TokenLogprobs

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
    max_running: int = 0
    """Most requests that it takes in one pass, 0 for any number."""
    kernels: str = "none"
    """Name of the kernels in use, for the log."""
    swaps_beside: bool = False
    """True if KV comes back from host memory while a pass runs."""
    kv_layout: str = TOKEN_LAYOUT
    """Layout in which this process sends and takes KV; "" if it does neither, for example because
    it holds a share of a group."""
    adapters: tuple[Adapter, ...] = ()
    """Adapters of the model that requests may name."""

    def kv_num_bytes(self, num_blocks: int) -> int:
        """Return the size of ``num_blocks`` blocks."""
        return num_blocks * self.block_size * self.kv_bytes_per_token


class PassFailure(HeadwayError):  # noqa: N818 (an outcome of a pass, as PassResult is)
    """The failure of a forward pass because of the requests ``keys``; run it again without them.

    ``code``: INVALID_ARGUMENT for requests that this engine can never serve.
    """

    def __init__(self, keys: Sequence[StreamKey], message: str, code: Code = Code.INTERNAL) -> None:
        super().__init__(code, message)
        self.keys = tuple(keys)


class KvSink(Protocol):
    """A writer of one request's KV into blocks."""

    def feed(self, data: Buffer) -> None:
        """Take the next bytes; HeadwayError (INVALID_ARGUMENT) for too many."""

    def finish(self) -> None:
        """Check that all bytes have come; HeadwayError (INVALID_ARGUMENT) for too few."""


@dataclass(frozen=True, slots=True)
class KvMemory:
    """A store of KV blocks in memory: plane ``p`` of block ``b`` is at
    ``base + p * plane_stride + b * block_stride`` and has ``block_bytes`` bytes.

    ``device``: number of the GPU that has it, None for the host's memory. ``num_bytes``: of all.
    """

    base: int
    num_bytes: int
    num_planes: int
    plane_stride: int
    block_stride: int
    block_bytes: int
    device: int | None = None


class IncomingKv(NamedTuple):
    """KV of tokens ``first_token … num_tokens - 1``; ``shape`` and ``dtype`` are the sender's."""

    block_ids: Sequence[int]
    shape: Sequence[int]
    dtype: str
    num_tokens: int
    first_token: int = 0
    to_host: bool = False


class KvAccess(Protocol):
    """An engine's KV, as transfers between workers read and write it."""

    @property
    def info(self) -> EngineInfo:
        """Return the engine's constants; ``kv_layout`` says how KV travels."""

    def kv_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return the wire's shape of ``num_blocks`` blocks."""

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        """Yield the blocks' KV in pieces of at most 1 MiB, each read when it is asked for."""

    def kv_writer(self, kv: IncomingKv) -> KvSink:
        """Return a sink; HeadwayError (INVALID_ARGUMENT) for KV that its blocks cannot hold."""


@runtime_checkable
class KvInMemory(KvAccess, Protocol):
    """An engine whose KV others may read and write where it is."""

    def kv_memory(self, *, is_host: bool) -> KvMemory | None:
        """Return the store of blocks on the device, or in host memory; None if there is none."""

    def await_writable(self) -> None:
        """Wait until no pass has yet to save what blocks on the device held before."""


class Backend(KvAccess, Protocol):
    """A loaded model with its KV blocks.

    One thread calls ``run``. Other threads may meanwhile read and write the KV of blocks that the
    pass does not use.
    """

    def expect(self, forward_pass: ForwardPass) -> None:
        """Announce a pass before it is queued for ``run``.

        Its ``swapped_out`` blocks may already belong to others: KV written into them must wait
        until the pass has saved the old contents.
        """

    def run(self, forward_pass: ForwardPass) -> PassResult:
        """Compute a plan and draw the tokens it asks for.

        A ``PENDING`` token is the one that the pass before drew for that request. Raises
        PassFailure with the requests at fault: an inconsistent item (nothing was computed) or
        logits that are not finite. The pass may then be run without them, and without its copies of
        KV: they have been made.
        """

    def close(self) -> None:
        """Release everything; writers that wait for a pass continue."""


@runtime_checkable
class QueueingBackend(Backend, Protocol):
    """A backend whose device takes a pass while it still computes the one before."""

    def launch(self, forward_pass: ForwardPass) -> Callable[[], PassResult]:
        """Queue a pass behind the one under way; return what waits for its result.

        Raises as ``run`` does. One thread launches all passes; another may wait for the results,
        in the same order.
        """


class Drawn(NamedTuple):
    """Tokens that a planning engine has drawn for one request, or its end without any."""

    key: StreamKey
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    """The reason why the engine ended it with the last of them; None if it continues."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """As many as tokens, or none."""
    num_cached_tokens: int = 0
    """Cached tokens of its prompt, with its first tokens."""
    message: str = ""
    """The error, if it failed."""
    code: Code = Code.INTERNAL
    """The error's kind; see ``StreamFailure``."""


class Computed(NamedTuple):
    """A request's share of a pass: ``num_tokens`` of its tokens from position ``start`` on.

    Guessed tokens that turned out wrong are not among them.
    """

    key: StreamKey
    start: int
    num_tokens: int


class Preempted(NamedTuple):
    """A request that has lost its KV, for a better one if that ``is_voluntary``."""

    key: StreamKey
    is_voluntary: bool


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The plan of a pass, from an engine that shows its plans."""

    num_added: int
    """Requests that the engine had been given when it planned the pass."""
    computed: tuple[Computed, ...]
    preempted: tuple[Preempted, ...] = ()
    """Requests that lost their KV before the pass."""


@dataclass(frozen=True, slots=True)
class EngineStepped:
    """The end of a forward pass of a planning engine; ``pass_time`` in seconds."""

    pass_time: float
    drawn: tuple[Drawn, ...]
    plan: PassPlan | None = None
    """None from an engine that does not show its plans."""
    ended_at: float = 0.0
    """Instant of its end by the process's ``time.perf_counter``, for records; 0 if not known."""
    num_drafts: int = 0
    """Guessed tokens that the pass checked, where the engine speculates."""
    num_accepted: int = 0
    """Guesses that were right."""


@runtime_checkable
class PlanningEngine(Protocol):
    """An engine that plans its own passes: it queues, orders and preempts by itself.

    All calls come from the event loop that calls ``start``, and so do the reports. Its
    ``info.num_blocks`` may be an estimate.
    """

    @property
    def info(self) -> EngineInfo:
        """Return the engine's constants."""

    @property
    def losses(self) -> Sequence[str]:
        """Return what Headway does elsewhere and cannot do here, for the log."""

    def start(self, stepped: Callable[[EngineStepped], None]) -> None:
        """Begin to serve; ``stepped`` takes each report."""

    async def watch(self, least: float) -> None:
        """End the process when the engine hangs for ``least`` seconds and more, 0 for never.

        An engine that notices by itself returns at once.
        """

    def add(self, request: Request, priority: int) -> None:
        """Continue a request after its output so far.

        ``priority``: the least first, in ms; an engine that has none ignores it.
        """

    def abort(self, key: StreamKey) -> None:
        """Stop a request; an unknown one is ignored. No report of it may follow."""

    def tune(self, gamma: float) -> None:
        """Take UniBoost's new γ; an engine whose order has none ignores it."""

    async def close(self) -> None:
        """Stop everything."""
