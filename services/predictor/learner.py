"""Online learning: a better version is trained from the states of finished requests.

Training continues from the current weights on a share of the finished requests and validates on the
rest. A version with a lower error is written, and the scorer loads it like any other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from headway.bounds import Bounded, between, over
from headway.core.predictor.samples import RequestEnded, SampleBuffer, Samples, SeenStates
from services.predictor.network import LengthNetwork
from services.predictor.scorer import Scorer
from services.predictor.versions import save_version
from services.runtime.logs import get_logger

_JUDGING_SHARE = 5  # every fifth request


@dataclass(frozen=True, slots=True)
class LearnSettings(Bounded):
    """The schedule and parameters by which a version is trained."""

    every: int = between(8, 1_000_000, default=256)
    """Finished requests between attempts."""
    gain: float = between(0, 1, default=0.02)
    """Share by which the error must fall."""
    rate: float = over(0, default=1e-3)
    """Learning rate."""
    num_steps: int = between(1, 1_000_000, default=400)
    """Batches per attempt."""
    batch_size: int = between(1, 65_536, default=64)


class Learner:
    """The learner of one model; call ``learn`` in a thread of its own."""

    def __init__(self, scorer: Scorer, settings: LearnSettings) -> None:
        self._scorer = scorer
        self._settings = settings
        self._buffer = SampleBuffer()
        self._learned_at = 0
        self._log = get_logger().bind(model=scorer.model)

    def take(self, seen: SeenStates, ended: Iterable[RequestEnded]) -> bool:
        """Add states and lengths; return whether it is time to learn."""
        for one in ended:
            self._buffer.end(one)
        self._buffer.see(seen)
        return self._buffer.num_ended - self._learned_at >= self._settings.every

    def samples(self) -> Samples | None:
        """Return the collected samples, and restart the count until the next attempt."""
        self._learned_at = self._buffer.num_ended
        return self._buffer.samples()

    def learn(self, samples: Samples) -> str:
        """Train a copy; return the new version's name, "" if it is not better."""
        torch.set_num_threads(1)  # for this thread: serving needs the others
        judging = samples.owners % _JUDGING_SHARE == 0
        if judging.all() or not judging.any():
            return ""
        old = self._scorer.loaded.network
        new = _fine_tuned(old, samples, ~judging, self._settings)
        before, after = _error(old, samples, judging), _error(new, samples, judging)
        self._log.info("learned", error_before=before, error_after=after)
        if not after < (1 - self._settings.gain) * before:
            return ""
        about = {
            name: each
            for name, each in self._scorer.loaded.about.items()
            if name not in ("width", "layers", "counts")
        }
        about |= {
            "learned_from": self._scorer.loaded.version,
            "learned": {"num_samples": len(samples.remaining), "mae": [before, after]},
        }
        return save_version(self._scorer.folder, new, about).name


def _error(network: LengthNetwork, samples: Samples, rows: np.ndarray) -> float:
    remaining = network.remaining(samples.hidden[rows], _counts(samples, rows))
    return float(np.abs(remaining - samples.remaining[rows]).mean())


def _counts(samples: Samples, rows: np.ndarray) -> np.ndarray | None:
    return None if samples.counts is None else samples.counts[rows]


def _fine_tuned(
    network: LengthNetwork, samples: Samples, rows: np.ndarray, settings: LearnSettings
) -> LengthNetwork:
    tuned = copy.deepcopy(network).train()
    states = tuned.inputs(samples.hidden[rows], _counts(samples, rows))
    targets = torch.from_numpy(samples.remaining[rows]) / tuned.target_scale
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=settings.rate)
    for _ in range(settings.num_steps):
        batch = torch.randint(len(targets), (settings.batch_size,))
        loss = (tuned(states[batch]) - targets[batch]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return tuned.eval()
