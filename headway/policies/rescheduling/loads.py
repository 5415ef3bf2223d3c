"""The load that a DP unit will have, simulated ahead in O(R + H) (STAR, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.policies.rescheduling.protocol import Floats, Horizon, Ints, UnitReport


def last_steps(remaining: Floats, num_steps: int, horizon: Horizon) -> NDArray[np.intp]:
    """Return the last step, 0 … H, at which a request runs: ``h · step < N̂(r)``, (R,).

    H for one that nothing is known of (NaN, negative).
    """
    far = (num_steps + 1.0) * horizon.step_tokens
    known = np.where(remaining >= 0, remaining, far)
    last = np.ceil(np.minimum(known, far) / horizon.step_tokens).astype(np.intp) - 1
    return np.clip(last, 0, num_steps)


def simulate_future(
    num_tokens: Sequence[int] | Ints, remaining: Sequence[float] | Floats, horizon: Horizon
) -> Floats:
    """N̂(t) after 1 … H steps, tokens, (H,): every request adds N(r) + t while t < N̂(r).

    One that nothing is known of (NaN, negative) keeps its current tokens throughout.
    """
    tokens = np.asarray(num_tokens, dtype=np.float64)
    left = np.asarray(remaining, dtype=np.float64)
    units = np.zeros(len(tokens), dtype=np.intp)
    return np.asarray(_simulate(units, tokens, left, 1, horizon.num_steps, horizon)[0])


def futures(units: Sequence[UnitReport], num_steps: int, horizon: Horizon) -> Floats:
    """Return every unit's load after 1 … H steps, (n, H): as reported, or simulated here."""
    if num_steps == 0:
        return np.empty((len(units), 0))
    if all(len(unit.future) == num_steps for unit in units):
        return np.stack([unit.future for unit in units])
    sizes = [len(unit.requests.keys) for unit in units]
    tokens = np.concatenate([unit.requests.num_tokens for unit in units]).astype(np.float64)
    remaining = np.concatenate([unit.requests.remaining for unit in units])
    owners = np.repeat(np.arange(len(units)), sizes)
    return _simulate(owners, tokens, remaining, len(units), num_steps, horizon)


def _simulate(
    owners: NDArray[np.intp],
    tokens: Floats,
    remaining: Floats,
    num_units: int,
    num_steps: int,
    horizon: Horizon,
) -> Floats:
    """Difference arrays: what ends after step h leaves all later steps; (n, H)."""
    last = last_steps(remaining, num_steps, horizon)
    grows = remaining >= 0
    size = num_units * (num_steps + 1)
    ends = owners * (num_steps + 1) + last
    ended = np.bincount(ends, weights=tokens, minlength=size).reshape(num_units, -1)
    ended_growing = np.bincount(ends, weights=grows, minlength=size).reshape(num_units, -1)
    # Alive at step h: those whose last step is h or later.
    alive = np.cumsum(ended[:, ::-1], axis=1)[:, ::-1][:, 1:]
    growing = np.cumsum(ended_growing[:, ::-1], axis=1)[:, ::-1][:, 1:]
    steps = horizon.step_tokens * np.arange(1, num_steps + 1)
    return np.asarray(alive + growing * steps)
