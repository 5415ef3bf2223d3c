"""What two trainings share: batches in a random order, and the weights of the best epoch."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray


def batches(count: int, size: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the rows of one epoch's batches, in a random order."""
    order = rng.permutation(count)
    return [order[start : start + size] for start in range(0, count, size)]


class BestEpoch:
    """The weights with the least validation error; after ``patience`` worse epochs, training ends.

    Without an epoch they are the network's own.
    """

    def __init__(self, network: torch.nn.Module, patience: int) -> None:
        self._network, self._patience = network, patience
        self._weights = copy.deepcopy(network.state_dict())
        self._error, self._num_worse = float("inf"), 0

    def ends_with(self, error: float) -> bool:
        """Take an epoch's validation error; return whether training ends."""
        self._num_worse += 1
        if error < self._error:
            self._weights = copy.deepcopy(self._network.state_dict())
            self._error, self._num_worse = error, 0
        return self._num_worse >= self._patience

    def restore(self) -> None:
        """Give the network its best weights."""
        self._network.load_state_dict(self._weights)
