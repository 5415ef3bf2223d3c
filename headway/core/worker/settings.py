"""What a worker's core is told at its start and never again."""

from __future__ import annotations

from dataclasses import dataclass

MOVE_ROUNDS = 4
"""Rounds of a move, live and in the simulator."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """``watermark``: share of a unit's blocks kept free at admission, [0, 1).

    ``report_interval``: seconds between reports while a worker only decodes. ``max_steps``: the
    most decode steps that the backend may run without asking again. ``linger``: seconds that a
    worker with prompt tokens left over waits for the next dispatch before it begins another pass;
    a round trip to the scheduler, which tops up the chunk (SBS), is well spent. ``max_running``:
    the most requests of a DP unit in one pass, 0 for any number. ``end_of_reasoning``: the
    token ids that end the reasoning of a request that reasons, ``start_of_reasoning`` those that
    begin it, where known. ``reader_pace``: seconds in which
    a reader takes one answering token. ``host_tokens``: of KV that a DP unit may keep in host
    memory for preempted requests, 0 to compute it again. ``prefix_caching``: whether a request
    may begin with the KV of others whose first tokens are the same. ``predict_every``: k, tokens
    of a request between two predictions of its remaining length (STAR), 0 for none.
    ``move_rounds``: the most rounds in which full blocks of a request that moves are sent while it
    runs; with 0 it stops first. ``runs_ahead``: whether a pass is planned while the one before it
    is in flight, so that the backend finds it at once (one step a pass).
    ``swaps_beside``: whether KV comes back from host memory beside a pass, and its request joins
    the next one, instead of before the pass that its request is in.
    """

    watermark: float = 0.1
    report_interval: float = 0.05
    num_dispatches_remembered: int = 1024
    max_steps: int = 1
    linger: float = 0.0
    max_running: int = 0
    end_of_reasoning: tuple[int, ...] = ()
    start_of_reasoning: tuple[int, ...] = ()
    reader_pace: float = 0.1
    host_tokens: int = 0
    prefix_caching: bool = False
    predict_every: int = 0
    move_rounds: int = 0
    runs_ahead: bool = False
    swaps_beside: bool = False
