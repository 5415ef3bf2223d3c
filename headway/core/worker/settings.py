"""Settings that a worker's core takes at its start and keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.defaults import MOVE_ROUNDS, REPORT_INTERVAL, WATERMARK
from headway.cost.costs import Costs


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker's planning, reports and KV."""

    watermark: float = WATERMARK
    """Share of a unit's blocks that admission keeps free, [0, 1)."""
    report_interval: float = REPORT_INTERVAL
    """Seconds between reports while a worker only decodes."""
    num_dispatches_remembered: int = 1024
    """Number of dispatches whose repetition is recognised."""
    max_steps: int = 1
    """Most decode steps that the backend may run in one pass."""
    linger: float = 0.0
    """Seconds that a worker with leftover prompt tokens waits for the next dispatch before it
    starts another pass: a round trip to the scheduler, which tops up the chunk (SBS)."""
    max_running: int = 0
    """Most requests of a DP unit in one pass, 0 for any number."""
    end_of_reasoning: tuple[int, ...] = ()
    """Token ids that end the reasoning of a request that reasons."""
    start_of_reasoning: tuple[int, ...] = ()
    """Token ids that begin it, where known."""
    reader_pace: float = 0.1
    """Seconds that a reader takes per answering token."""
    host_tokens: int = 0
    """Tokens of KV that a DP unit may keep in host memory, of preempted requests before all."""
    host_prefixes: bool = True
    """True if cached prefixes are kept there, too, where preempted requests leave room."""
    prefix_caching: bool = False
    """True if a request may start with cached KV of an equal beginning."""
    predict_every: int = 0
    """k, tokens of a request between two predictions of its remaining length (STAR), 0 for none."""
    move_rounds: int = MOVE_ROUNDS
    """Most rounds that send full blocks of a moving request while it runs; 0: stop it first."""
    runs_ahead: bool = False
    """True if a pass is planned while the one before it is in flight (one step a pass)."""
    costs: Costs = field(default_factory=Costs)
    """Costs of the worker as far as a profile tells them; it measures the others."""
    swaps_beside: bool = False
    """True if KV comes back from host memory during a pass and its request joins the next one,
    instead of before the request's own pass."""
    tells_lives: bool = False
    """True if gateways are told what happens to their requests (``headway.life``)."""
    tells_kv: bool = False
    """True if changes of the prefix cache are told (``TellKv``)."""
