"""Latency of a predictor's batch: of the network alone, and of a call to the service."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.predictor.network import LengthNetwork, NetworkShape, parameter_count

BATCHES = (1, 10, 64, 256)
PAPER_MS = {1: 1.33, 10: 2.4}
PAPER_WIDTH = 3584


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one batch, over the repeats."""

    width: int
    num_parameters: int
    batch_size: int
    median_ms: float
    best_ms: float
    p99_ms: float


def measure_latency(shape: NetworkShape, batches: Sequence[int], repeats: int) -> list[Latency]:
    """Measure a network of that shape with random weights on one thread: states in, lengths out."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = LengthNetwork(shape).eval().for_scoring()
    rng = np.random.default_rng(0)
    rows = []
    for batch in batches:
        states = rng.standard_normal((batch, shape.width)).astype(np.float16)
        for _ in range(3):
            network.remaining(states)
        times = sorted(_timed(network, states) for _ in range(repeats))
        p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
        count = parameter_count(shape.layers, shape.width)
        median = statistics.median(times)
        rows.append(Latency(shape.width, count, batch, 1e3 * median, 1e3 * times[0], 1e3 * p99))
    return rows


def _timed(network: LengthNetwork, states: np.ndarray) -> float:
    began = time.perf_counter()
    network.remaining(states)
    return time.perf_counter() - began
