"""The predictor's network: a hidden state in, the remaining output tokens out (STAR, section 4).

It may also read two counts that the worker knows: tokens of the prompt, and of the output so far. A
hidden state barely encodes them, because its positions are relative.
"""

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
_LARGE = 1_000_000  # parameters; smaller networks do not spend their time in products
_COUNT_INPUTS = 4  # both counts, and their logarithms
MAX_DEPTH, MAX_WIDTH = 8, 16_384


def default_layers(width: int) -> tuple[int, ...]:
    """Return the paper's layer widths; narrower ones for models smaller than its own."""
    if width >= 1024:
        return PAPER_LAYERS
    return (max(64, 4 * width), max(64, 2 * width), 64)


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Sizes of a network."""

    width: int
    """d, the size of a hidden state."""
    layers: tuple[int, ...]
    """Widths of the hidden layers, at least one."""
    counts: bool = False
    """True if it also reads prompt and output tokens (the paper's does not)."""

    def __post_init__(self) -> None:
        require_between("width", self.width, 1, 65_536)
        require_between("the number of layers", len(self.layers), 1, MAX_DEPTH)
        for layer in self.layers:
            require_between("a layer's width", layer, 1, MAX_WIDTH)

    @property
    def num_inputs(self) -> int:
        """Number of inputs of the first layer."""
        return self.width + _COUNT_INPUTS * self.counts


class LengthNetwork(torch.nn.Module):
    """Linear layers with ReLU (d → … → 1) on normalised inputs; it keeps the constants."""

    input_mean: torch.Tensor
    input_scale: torch.Tensor
    target_scale: torch.Tensor

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        widths = (shape.num_inputs, *shape.layers, 1)
        layers: list[torch.nn.Module] = []
        for number, (before, after) in enumerate(itertools.pairwise(widths)):
            if number:
                layers.append(torch.nn.ReLU())
            layers.append(torch.nn.Linear(before, after))
        self.layers = torch.nn.Sequential(*layers)
        self._computes_in = torch.float32  # all layers but the last
        self.register_buffer("input_mean", torch.zeros(shape.num_inputs))
        self.register_buffer("input_scale", torch.ones(shape.num_inputs))
        self.register_buffer("target_scale", torch.ones(()))

    @torch.no_grad()
    def normalise_by(self, inputs: torch.Tensor, remaining: NDArray[np.float32]) -> None:
        """Set the constants from training data: inputs (n, d or more), tokens (n,)."""
        self.input_mean.copy_(inputs.mean(dim=0))
        self.input_scale.copy_(1.0 / inputs.std(dim=0, correction=0).clamp_min(1e-3))
        self.target_scale.fill_(max(1.0, float(remaining.mean())))

    def inputs(
        self, hidden: NDArray[np.float16], counts: NDArray[np.float32] | None = None
    ) -> torch.Tensor:
        """Return the inputs (n, num_inputs), float32, from states (n, d) and token counts (n, 2).

        Missing counts are NaN. INVALID_ARGUMENT if the width differs.
        """
        if hidden.ndim != 2 or hidden.shape[1] != self.shape.width:
            limit = f"{self.shape.width}, as the model's hidden states"
            raise invalid("width", hidden.shape[-1], limit)
        states = torch.from_numpy(hidden.astype(np.float32))
        if not self.shape.counts:
            return states
        if counts is None:
            counts = np.full((len(hidden), 2), np.nan, dtype=np.float32)
        read = torch.from_numpy(np.ascontiguousarray(counts, dtype=np.float32))
        return torch.cat([states, read, torch.log1p(read)], dim=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (n, num_inputs) to tokens over ``target_scale``, (n,); may be negative."""
        normalised = (inputs - self.input_mean) * self.input_scale
        inner = self.layers[:-1](normalised.to(self._computes_in))
        tokens: torch.Tensor = self.layers[-1](inner.float()).squeeze(-1)
        return tokens

    def for_scoring(self) -> LengthNetwork:
        """Return this network, or a bfloat16 copy where that is faster.

        The results differ by well under 1 %, far less than the prediction error.
        """
        is_large = parameter_count(self.shape.layers, self.shape.num_inputs) >= _LARGE
        if not (is_large and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            return self
        fast = copy.deepcopy(self).eval()
        fast.layers[:-1].to(torch.bfloat16)
        fast._computes_in = torch.bfloat16
        return fast

    @torch.inference_mode()
    def remaining(
        self, hidden: NDArray[np.float16], counts: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return the remaining tokens, at least 0, (n,); NaN where an input is not finite."""
        inputs = self.inputs(hidden, counts)
        tokens: NDArray[np.float32] = (self(inputs) * self.target_scale).clamp_min(0.0).numpy()
        good = torch.isfinite(inputs).all(dim=1).numpy()
        return np.where(good & np.isfinite(tokens), tokens, np.float32(np.nan))


def parameter_count(layers: Sequence[int], width: int) -> int:
    """Return the number of weights and biases; ``width`` is that of the inputs."""
    widths = (width, *layers, 1)
    return sum((a + 1) * b for a, b in itertools.pairwise(widths))
