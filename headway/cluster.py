"""Workers and their DP units, as the scheduler sees them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

TOKEN_LAYOUT = "tokens"
"""The layout of KV on the wire that does not depend on an engine: tokens one after the other.

Its form is (layers, 2, tokens, KV heads, head size), keys before values, in C order. An engine that
keeps its KV otherwise converts it, or has a layout of its own name.
"""


class Role(Enum):
    """The kind of work that an instance does."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"
    CONVERTIBLE = "convertible"

    @property
    def prefills(self) -> bool:
        """True if the scheduler dispatches waiting requests to it."""
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        """True if it accepts handoffs of prefilled requests."""
        return self is not Role.PREFILL


class UnitId(NamedTuple):
    """The id of a DP unit, the smallest thing that is scheduled."""

    worker_id: str
    unit: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter of a model (LoRA); ``digest``: of its files."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's description; only ``role`` can change. ``num_blocks`` is per DP unit.

    ``chunk_tokens``: most tokens of one DP unit in one pass, where its role has none of its own.
    """

    worker_id: str
    address: str
    role: Role
    model: str
    num_units: int
    chunk_tokens: int
    block_size: int
    num_blocks: int
    max_model_len: int
    kv_bytes_per_token: int
    kv_layout: str = TOKEN_LAYOUT
    """Layout of the KV that it sends and takes, "" if it does neither. KV goes to workers of the
    same layout alone."""
    num_host_blocks: int = 0
    """Blocks of host memory, per DP unit, that cached prefixes may use where preempted requests
    leave room; 0: they are on the device alone."""
    adapters: tuple[Adapter, ...] = ()
    """Adapters of its model that requests may name, by name."""
    process_id: str = ""
    """Tells its process from earlier ones of the same name, "" if it does not say."""
    prefill_chunk_tokens: int = 0
    """The chunk while it is a prefiller, where no reader waits for a pass; 0: ``chunk_tokens``."""
    convertible_chunk_tokens: int = 0
    """The restricted chunk while it is a convertible decoder; 0: ``chunk_tokens``."""

    @property
    def pass_tokens(self) -> int:
        """Most tokens of one of its units in one pass: the chunk of its role."""
        own = 0
        if self.role is Role.PREFILL:
            own = self.prefill_chunk_tokens
        elif self.role is Role.CONVERTIBLE:
            own = self.convertible_chunk_tokens
        return own or self.chunk_tokens

    @property
    def turn_tokens(self) -> int:
        """C_chunk: prompt tokens that the scheduler sends one of its units at once, at most.

        A prefiller's longer chunk is for long prompts alone. More short ones than this wait in the
        scheduler's window, where they can still be put in order.
        """
        return min(self.chunk_tokens, self.pass_tokens)

    @property
    def kv_kind(self) -> str:
        """The kind of KV that it sends and takes, "" if it does neither.

        KV goes to workers of the same kind alone: the same layout, and the same adapters.
        """
        if not (self.kv_layout and self.adapters):
            return self.kv_layout
        return " ".join((self.kv_layout, *(f"{a.name}={a.digest}" for a in self.adapters)))

    def has_adapter(self, name: str) -> bool:
        """Return whether requests may name this adapter; "" is the model itself."""
        return not name or any(adapter.name == name for adapter in self.adapters)


@dataclass(frozen=True, slots=True)
class UnitLoad:
    """Load of one DP unit at one instant; tokens, requests and blocks.

    Workers that were not asked for phases leave those three figures at their defaults.
    """

    unit: int
    queued_prefill_tokens: int
    num_running: int
    kv_tokens: int
    num_free_blocks: int
    host_tokens: int = 0
    """Tokens whose KV is in host memory."""
    num_reasoning: int = 0
    num_fresh_answering: int = 0
    """Answering requests within their first quantum."""
    is_on_schedule: bool = True
    """True if no reader waits."""
    lost_tokens: int = 0
    """Tokens of preempted requests whose KV is to be computed again."""
    num_arriving: int = 0
    """Requests of ``num_running`` whose KV another worker is sending."""
    arriving_tokens: int = 0
    """Tokens of ``kv_tokens`` that belong to them; their blocks are not free."""
    num_yielding_blocks: int = 0
    """Blocks in use that the order of batching takes for a reader's first token that comes now."""
    yielding_tokens: int = 0
    """Tokens of ``queued_prefill_tokens`` that it computes after such a one."""
