"""The predictor's network: a hidden state in, the tokens still to come out (STAR, section 4)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headway.errors import invalid, require_between

PAPER_LAYERS = (2048, 512, 64)
_LARGE = 1_000_000  # parameters; the time of smaller ones is not in their products
MAX_DEPTH, MAX_WIDTH = 8, 16_384


def default_layers(width: int) -> tuple[int, ...]:
    """The paper's for a model of its size, narrower for small ones."""
    if width >= 1024:
        return PAPER_LAYERS
    return (max(64, 2 * width), max(64, width), 64)


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """``width``: d, of a hidden state. ``layers``: widths of the hidden layers, at least one."""

    width: int
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        require_between("width", self.width, 1, 65_536)
        require_between("the number of layers", len(self.layers), 1, MAX_DEPTH)
        for layer in self.layers:
            require_between("a layer's width", layer, 1, MAX_WIDTH)


class LengthNetwork(torch.nn.Module):
    """Linear layers with ReLU: d → … → 1, on normalised states; the constants are its own."""

    input_mean: torch.Tensor
    input_scale: torch.Tensor
    target_scale: torch.Tensor

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        widths = (shape.width, *shape.layers, 1)
        layers: list[torch.nn.Module] = []
        for number, (before, after) in enumerate(itertools.pairwise(widths)):
            if number:
                layers.append(torch.nn.ReLU())
            layers.append(torch.nn.Linear(before, after))
        self.layers = torch.nn.Sequential(*layers)
        self._computes_in = torch.float32  # all layers but the last
        self.register_buffer("input_mean", torch.zeros(shape.width))
        self.register_buffer("input_scale", torch.ones(shape.width))
        self.register_buffer("target_scale", torch.ones(()))

    @torch.no_grad()
    def normalise_by(self, hidden: NDArray[np.float16], remaining: NDArray[np.float32]) -> None:
        """Take the constants from training data: states (n, d), tokens (n,)."""
        states = hidden.astype(np.float32)
        spread = np.maximum(states.std(axis=0), 1e-3)
        self.input_mean.copy_(torch.from_numpy(states.mean(axis=0)))
        self.input_scale.copy_(torch.from_numpy(1.0 / spread))
        self.target_scale.fill_(max(1.0, float(remaining.mean())))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """States (n, d) to tokens over ``target_scale``, (n,); may be below 0."""
        normalised = (hidden - self.input_mean) * self.input_scale
        inner = self.layers[:-1](normalised.to(self._computes_in))
        tokens: torch.Tensor = self.layers[-1](inner.float()).squeeze(-1)
        return tokens

    def for_scoring(self) -> LengthNetwork:
        """This network, or a copy that computes in bfloat16 where that is faster.

        What it says then differs by well under 1 %, far less than it errs.
        """
        is_large = parameter_count(self.shape.layers, self.shape.width) >= _LARGE
        if not (is_large and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            return self
        fast = copy.deepcopy(self).eval()
        fast.layers[:-1].to(torch.bfloat16)
        fast._computes_in = torch.bfloat16
        return fast

    @torch.inference_mode()
    def remaining(self, hidden: NDArray[np.float16]) -> NDArray[np.float32]:
        """Tokens still to come, at least 0, (n,); NaN for a state that is not all numbers."""
        if hidden.ndim != 2 or hidden.shape[1] != self.shape.width:
            limit = f"{self.shape.width}, as the model's hidden states"
            raise invalid("width", hidden.shape[-1], limit)
        states = torch.from_numpy(hidden.astype(np.float32))
        scaled = self(states) * self.target_scale
        tokens: NDArray[np.float32] = scaled.clamp_min(0.0).numpy()
        good = np.isfinite(hidden).all(axis=1)
        return np.where(good & np.isfinite(tokens), tokens, np.float32(np.nan))


def parameter_count(layers: Sequence[int], width: int) -> int:
    """Weights and biases."""
    widths = (width, *layers, 1)
    return sum((a + 1) * b for a, b in itertools.pairwise(widths))
