"""Baselines of a predictor: estimates from the prompt alone, counted down.

The mean, a regression on the prompt's length, and an encoder of the prompt's tokens that is trained
for it (the paper's auxiliary models, of this model's size).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from models.lengths.best import BestEpoch, batches
from models.lengths.samples import Collected, SampledRequest

Floats = NDArray[np.float32]
Baseline = Callable[[Sequence[SampledRequest]], Floats]
"""Expected output tokens of requests, (n,)."""

_LONGEST_PROMPT = 512  # tokens that the encoder reads, the last ones


def remaining_by(baseline: Baseline, samples: Collected) -> Floats:
    """Return each sample's remaining tokens: expected less generated, at least 0."""
    expected = baseline(samples.requests)[samples.owners]
    left = np.maximum(0.0, expected - samples.num_output_tokens)
    return np.asarray(left, dtype=np.float32)


def fit_all(samples: Collected, seed: int = 0, num_epochs: int = 20) -> Mapping[str, Baseline]:
    """Return every baseline by name, fitted to the training split's requests.

    ``num_epochs``: the encoder's, at most.
    """
    fitting = [r for r in samples.requests if r.split == "train"]
    judging = [r for r in samples.requests if r.split == "validation"]
    return {
        "mean": _mean(fitting),
        "prompt length": _regression(fitting),
        "prompt encoder": _encoder(fitting, judging, seed, num_epochs),
    }


def _totals(requests: Sequence[SampledRequest]) -> Floats:
    return np.array([r.num_output_tokens for r in requests], dtype=np.float32)


def _lengths(requests: Sequence[SampledRequest]) -> Floats:
    return np.array([len(r.prompt_token_ids) for r in requests], dtype=np.float32)


def _mean(fitting: Sequence[SampledRequest]) -> Baseline:
    mean = float(_totals(fitting).mean())
    return lambda requests: np.full(len(requests), mean, dtype=np.float32)


def _regression(fitting: Sequence[SampledRequest], num_rounds: int = 50) -> Baseline:
    """Fit least absolute deviations: least squares, reweighted by the last fit's errors."""
    columns = np.stack([_lengths(fitting), np.ones(len(fitting), np.float32)], axis=1)
    totals, weights = _totals(fitting), np.ones(len(fitting))
    line = np.zeros(2)
    for _ in range(num_rounds):
        root = np.sqrt(weights)[:, None]
        line = np.linalg.lstsq(columns * root, totals * root[:, 0], rcond=None)[0]
        weights = 1.0 / np.maximum(np.abs(columns @ line - totals), 1.0)
    slope, start = float(line[0]), float(line[1])
    return lambda requests: (slope * _lengths(requests) + start).astype(np.float32)


# --- the encoder ----------------------------------------------------------------------


class PromptEncoder(torch.nn.Module):
    """A small transformer over a prompt's tokens, its mean into expected output tokens."""

    def __init__(self, vocab_size: int, width: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(vocab_size + 1, width, padding_idx=vocab_size)
        self.places = torch.nn.Embedding(_LONGEST_PROMPT, width)
        layer = torch.nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
        )
        self.padding = vocab_size

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map padded ids (n, longest) to tokens over the mean (n,)."""
        padded = ids == self.padding
        places = self.places(torch.arange(ids.shape[1]))
        states = self.layers(self.tokens(ids) + places, src_key_padding_mask=padded)
        kept = (~padded).unsqueeze(-1)
        mean = (states * kept).sum(1) / kept.sum(1)
        tokens: torch.Tensor = self.head(mean).squeeze(-1)
        return tokens


def _encoder(
    fitting: Sequence[SampledRequest],
    judging: Sequence[SampledRequest],
    seed: int,
    num_epochs: int,
    patience: int = 5,
) -> Baseline:
    torch.manual_seed(seed)
    vocab_size = 1 + max(max(r.prompt_token_ids) for r in (*fitting, *judging))
    network, scale = PromptEncoder(vocab_size), float(_totals(fitting).mean())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    rng, totals = np.random.default_rng(seed), _totals(fitting)
    best = BestEpoch(network, patience)
    for _ in range(num_epochs):
        network.train()
        for rows in batches(len(fitting), 64, rng):
            ids = _padded([fitting[row] for row in rows], vocab_size)
            loss = (network(ids) - torch.from_numpy(totals[rows] / scale)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        expected = _expected(network.eval(), judging, vocab_size, scale)
        if best.ends_with(float(np.abs(expected - _totals(judging)).mean())):
            break
    best.restore()
    network.eval()
    return lambda requests: _expected(network, requests, vocab_size, scale)


def _padded(requests: Sequence[SampledRequest], padding: int) -> torch.Tensor:
    prompts = [r.prompt_token_ids[-_LONGEST_PROMPT:] for r in requests]
    ids = torch.full((len(prompts), max(map(len, prompts))), padding)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor([min(i, padding - 1) for i in prompt])
    return ids


@torch.inference_mode()
def _expected(
    network: PromptEncoder, requests: Sequence[SampledRequest], padding: int, scale: float
) -> Floats:
    parts = [
        network(_padded(requests[start : start + 256], padding)).numpy() * scale
        for start in range(0, len(requests), 256)
    ]
    return np.concatenate(parts).astype(np.float32)
