"""Settings that a worker's core takes at its start and keeps."""

from __future__ import annotations

from dataclasses import dataclass

MOVE_ROUNDS = 4
"""Rounds of a move, live and in the simulator."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker plans, reports and keeps KV."""

    watermark: float = 0.1
    """Share of a unit's blocks that admission keeps free, [0, 1)."""
    report_interval: float = 0.05
    """Seconds between reports while a worker only decodes."""
    num_dispatches_remembered: int = 1024
    """Dispatches whose repetition is recognised."""
    max_steps: int = 1
    """Most decode steps that the backend may run without asking again."""
    linger: float = 0.0
    """Seconds that a worker with prompt tokens left over waits for the next dispatch before it
    begins another pass: a round trip to the scheduler, which tops up the chunk (SBS)."""
    max_running: int = 0
    """Most requests of a DP unit in one pass, 0 for any number."""
    end_of_reasoning: tuple[int, ...] = ()
    """Token ids that end the reasoning of a request that reasons."""
    start_of_reasoning: tuple[int, ...] = ()
    """Token ids that begin it, where known."""
    reader_pace: float = 0.1
    """Seconds in which a reader takes one answering token."""
    host_tokens: int = 0
    """Tokens of KV that a DP unit may keep in host memory for preempted requests."""
    prefix_caching: bool = False
    """Whether a request may begin with the KV of others whose first tokens are the same."""
    predict_every: int = 0
    """k, tokens of a request between two predictions of its remaining length (STAR), 0 for none."""
    move_rounds: int = 0
    """Most rounds in which full blocks of a moving request are sent while it runs; 0 stops it."""
    runs_ahead: bool = False
    """Whether a pass is planned while the one before it is in flight (one step a pass)."""
    swaps_beside: bool = False
    """Whether KV comes back from host memory beside a pass, and its request joins the next one,
    instead of before the pass that its request is in."""
