"""Trains a predictor: L1 loss, AdamW, early stopping on the validation error (STAR, section 4)."""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.errors import Code, HeadwayError, require_between, require_over
from models.lengths.best import BestEpoch, batches
from models.lengths.samples import Collected
from services.predictor.network import LengthNetwork, NetworkShape, default_layers

DEPTHS = (2, 3, 4, 5, 6)
WIDTHS = (256, 512, 1024)
RATES = (1e-4, 3e-4, 1e-3)
BATCHES = (16, 32, 64, 128)
"""The paper's search space; a depth counts linear layers."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """``layers``: hidden widths, empty for the default of the model's size.

    ``patience``: epochs without a better validation error before training ends.
    ``rate``: the peak learning rate; it falls to a hundredth by a cosine. ``counts``: whether the
    network reads the tokens of prompt and output beside the state.
    """

    layers: tuple[int, ...] = ()
    rate: float = 1e-3
    batch_size: int = 64
    num_epochs: int = 100
    patience: int = 10
    weight_decay: float = 0.01
    seed: int = 0
    counts: bool = True

    def __post_init__(self) -> None:
        require_over("rate", self.rate, 0)
        require_between("batch_size", self.batch_size, 1, 65_536)
        require_between("num_epochs", self.num_epochs, 1, 100_000)
        require_between("patience", self.patience, 1, 100_000)
        require_between("weight_decay", self.weight_decay, 0, 10)


@dataclass(frozen=True, slots=True)
class Epoch:
    """Mean absolute errors in tokens."""

    number: int
    train_error: float
    validation_error: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Trained:
    """The network of the best epoch, and how it came about."""

    network: LengthNetwork
    settings: TrainSettings
    epochs: tuple[Epoch, ...] = field(default=())

    @property
    def error(self) -> float:
        """Return the best validation error, tokens."""
        return min(epoch.validation_error for epoch in self.epochs)

    def curve(self) -> dict[str, Any]:
        """Return the epochs for a JSON file."""
        return {"settings": asdict(self.settings), "epochs": [asdict(e) for e in self.epochs]}


def train(
    samples: Collected,
    settings: TrainSettings,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    start: LengthNetwork | None = None,
) -> Trained:
    """Train on the training split until the validation split stops it.

    ``start``: weights to begin with. FAILED_PRECONDITION if a split has no samples.
    """
    fitting, judging = samples.split("train"), samples.split("validation")
    if not (len(fitting.remaining) and len(judging.remaining)):
        message = "the training or the validation split is empty: collect more requests"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    torch.manual_seed(settings.seed)
    width = fitting.hidden.shape[1]
    if start is None:
        layers = settings.layers or default_layers(width)
        network = LengthNetwork(NetworkShape(width, layers, settings.counts))
        network.normalise_by(network.inputs(fitting.hidden, fitting.counts), fitting.remaining)
    else:
        network = copy.deepcopy(start)
    return _fit(network, fitting, judging, settings, on_epoch)


def _fit(
    network: LengthNetwork,
    fitting: Collected,
    judging: Collected,
    settings: TrainSettings,
    on_epoch: Callable[[Epoch], None],
) -> Trained:
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, settings.num_epochs, eta_min=settings.rate / 100
    )
    epochs: list[Epoch] = []
    inputs, remaining = _tensors(network, fitting)
    best = BestEpoch(network, settings.patience)
    rng, began = np.random.default_rng(settings.seed), time.monotonic()
    for number in range(1, settings.num_epochs + 1):
        rows = batches(len(remaining), settings.batch_size, rng)
        parts = ((inputs[row], remaining[row]) for row in rows)
        error = _one_epoch(network, optimizer, parts)
        schedule.step()
        judged = mean_absolute_error(network, judging)
        epochs.append(Epoch(number, error, judged, time.monotonic() - began))
        on_epoch(epochs[-1])
        if best.ends_with(judged):
            break
    best.restore()
    return Trained(network.eval(), settings, tuple(epochs))


def _tensors(network: LengthNetwork, samples: Collected) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = network.inputs(samples.hidden, samples.counts)
    return inputs, torch.from_numpy(samples.remaining.astype(np.float32))


def _one_epoch(
    network: LengthNetwork,
    optimizer: torch.optim.Optimizer,
    parts: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> float:
    network.train()
    total, count = 0.0, 0
    for inputs, remaining in parts:
        loss = (network(inputs) - remaining / network.target_scale).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(remaining)
        count += len(remaining)
    return total / count * float(network.target_scale)


def mean_absolute_error(network: LengthNetwork, samples: Collected) -> float:
    """Return the mean absolute error in tokens, over all samples."""
    return float(np.abs(predictions(network, samples) - samples.remaining).mean())


# --- the paper's search ---------------------------------------------------------------


def layers_of(depth: int, width: int) -> tuple[int, ...]:
    """Return hidden widths of so many linear layers, from ``width`` to 64 in equal ratios."""
    widths = np.geomspace(width, 64, depth - 1) if depth > 2 else np.array([width])
    return tuple(max(8, 8 * round(float(each) / 8)) for each in widths)


def search_space(base: TrainSettings, num_trials: int) -> Sequence[TrainSettings]:
    """Draw so many of the paper's settings without repeats, by the base's seed."""
    every = list(itertools.product(DEPTHS, WIDTHS, RATES, BATCHES))
    drawn = random.Random(base.seed).sample(every, min(num_trials, len(every)))
    return [
        replace(base, layers=layers_of(depth, width), rate=rate, batch_size=batch)
        for depth, width, rate, batch in drawn
    ]


def predictions(network: LengthNetwork, samples: Collected) -> NDArray[np.float32]:
    """Return the remaining tokens, (n,)."""
    return network.remaining(samples.hidden, samples.counts)
