"""The cluster as its leading scheduler sees it at one instant, for people: never for decisions."""

from __future__ import annotations

from dataclasses import dataclass

from headway.cluster import Role
from headway.messages import MeasuredCosts, UsedConstant


@dataclass(frozen=True, slots=True)
class CostPicture:
    """Costs that a worker has measured while it served, and the sizes that belong to them."""

    chunk_tokens: int
    kv_bytes_per_token: int
    measured: MeasuredCosts


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """One worker, its DP units added up; requests, tokens, blocks, seconds.

    ``pass_time``: mean of its last reported passes, 0 if unknown. ``profile_pass_time``: of the
    same passes, as the profile predicts them; 0 without a profile. ``ahead_tokens``: KV tokens
    predicted after each ``ahead_step`` seconds, none where no policy asks for predictions.
    """

    worker_id: str
    role: Role
    model: str
    address: str
    num_units: int
    is_draining: bool
    num_running: int
    num_arriving: int
    """Requests whose KV is on its way here."""
    queued_tokens: int
    """Prompt tokens that are dispatched and not computed."""
    kv_tokens: int
    host_tokens: int
    block_size: int
    num_blocks: int
    num_used_blocks: int
    num_promised_blocks: int
    """Free blocks that dispatched and arriving requests will need."""
    pass_time: float = 0.0
    profile_pass_time: float = 0.0
    ahead_step: float = 0.0
    ahead_tokens: tuple[float, ...] = ()
    costs: CostPicture | None = None
    """None until it has measured some."""
    constants: tuple[UsedConstant, ...] = ()
    """Constants by which its order decides."""


@dataclass(frozen=True, slots=True)
class WindowPicture:
    """The waiting window of one model; ``interval``: seconds between dispatches, 0 for none."""

    model: str
    num_active: int
    num_waiting: int
    num_at_door: int
    backlog_tokens: int
    longest_wait_cycles: int
    flow_level: str
    interval: float
    mean_pass_time: float


@dataclass(frozen=True, slots=True)
class MovePicture:
    """A request whose KV travels from worker to worker: a handoff, or a move while it runs."""

    request_id: str
    source_id: str
    target_id: str
    num_tokens: int
    is_running: bool


@dataclass(frozen=True, slots=True)
class HeldPicture:
    """A request that waits for the unit that holds ``num_hit_tokens`` of its prompt.

    ``longest_wait``: seconds after which it goes anywhere; 0: it never does.
    """

    request_id: str
    worker_id: str
    unit: int
    num_hit_tokens: int
    longest_wait: float


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """The workers, windows and moves of one leader; ``moves`` and ``held`` are the first ones."""

    fencing_token: int
    workers: tuple[WorkerPicture, ...]
    windows: tuple[WindowPicture, ...]
    moves: tuple[MovePicture, ...]
    num_tracked: int
    num_moving: int
    num_awaiting_decode: int
    num_held_back: int
    held: tuple[HeldPicture, ...] = ()
    """Requests that wait for their own unit."""
    num_held: int = 0


NO_PICTURE = ClusterPicture(0, (), (), (), 0, 0, 0, 0)
