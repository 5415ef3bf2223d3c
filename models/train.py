"""Trains the model from nothing: ``python -m models.train --out DIR --minutes N``.

The schedule follows the tokens seen, so two runs that meet their token budget are the same;
``--minutes`` bounds a slower machine, where time then drives the schedule to its end.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from models.data import TrainingChat, Waiting, batches, width_of
from models.forward import compiled, last_hidden
from models.tokenizer import (
    END_OF_TEXT,
    IM_END,
    MARKER_IDS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    build_tokenizer,
    save_tokenizer,
)

HIDDEN_RATE, OTHER_RATE = 6e-3, 3e-3  # peak learning rates: matrices (Muon), the rest (AdamW)
FIRST_SIZE, FULL_SIZE = 6, 20  # the curriculum's smallest and largest bound on sizes
REPORT_STEPS, SAVE_SECONDS = 50, 240
LOGITS_STEP = 1024  # logits are made of a multiple of so many tokens: few distinct shapes
TEMPERATURE, TOP_P = 0.6, 0.95  # of requests that say nothing, as other models of this shape have
LIKELY = 0.69  # a token's loss below which no other token is likelier


@dataclass(frozen=True)
class TrainingPhase:
    """A part of the schedule; ``warm_up``, ``decay`` and ``growing`` are shares of its length.

    The learning rate rises to ``rate`` times its peak over ``warm_up`` and falls to zero over
    ``decay``; problem sizes grow over ``growing``.
    """

    tokens: float
    rate: float
    warm_up: float
    decay: float
    growing: float

    def rate_factor(self, progress: float) -> float:
        """Return the learning rate as a share of its peak, at a progress of 0..1 in the phase."""
        shape = min(1.0, progress / self.warm_up, (1 - progress) / self.decay)
        return self.rate * max(0.0, shape)

    def largest_size(self, progress: float) -> int:
        """Return the largest problem size at a progress of 0..1 through the phase."""
        grown = min(1.0, progress / self.growing) if self.growing else 1.0
        return FIRST_SIZE + int(grown * (FULL_SIZE - FIRST_SIZE))


PHASES = (
    TrainingPhase(tokens=20e6, rate=1.0, warm_up=0.01, decay=0.35, growing=0.2),
    TrainingPhase(tokens=45e6, rate=0.4, warm_up=0.02, decay=0.9, growing=0.0),
)


def build_model() -> Qwen3ForCausalLM:
    """Build the untrained model: 3.2 million parameters in the stock Qwen3 shape."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=192,
            intermediate_size=576,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=32,
            max_position_embeddings=MAX_POSITIONS,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=MARKER_IDS[IM_END],
            pad_token_id=MARKER_IDS[END_OF_TEXT],
        )
    )


def build_optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Give the layers' matrices to Muon, the embedding and the norms to AdamW."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(
            matrices, lr=HIDDEN_RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def tensors(
    batch: list[TrainingChat],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad a batch at the right: ids, next-token labels, weights and positions (rows, width)."""
    width = width_of(batch[0])
    ids = torch.full((len(batch), width), MARKER_IDS[END_OF_TEXT])
    weights = torch.zeros(len(batch), width)
    positions = torch.arange(width).repeat(len(batch), 1)
    for row, each in enumerate(batch):
        length = len(each.ids)
        ids[row, :length] = torch.tensor(each.ids)
        weights[row, :length] = torch.tensor(each.weights)
        positions[row, :length] = torch.tensor(each.positions)
    return ids, ids.roll(-1, dims=1), weights.roll(-1, dims=1), positions


class Progress:
    """Counts of tokens and, per task, of examples that were predicted whole; prints both."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.steps = self.tokens = 0
        self.seen: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()
        self.loss = 0.0

    def minutes(self) -> float:
        """Minutes since the training began."""
        return (time.monotonic() - self.began) / 60

    def note(self, batch: list[TrainingChat], right: torch.Tensor, loss: float) -> None:
        """Take in one step: ``right`` (rows,) says which rows had every token predicted."""
        self.steps += 1
        self.tokens += sum(len(each.ids) for each in batch)
        self.loss += loss
        for each, whole in zip(batch, right.tolist(), strict=True):
            self.seen[each.task] += 1
            self.whole[each.task] += whole
        if self.steps % REPORT_STEPS == 0:
            self.report()

    def report(self) -> None:
        """Print the state since the last report."""
        shares = " ".join(f"{n} {self.whole[n] / self.seen[n]:.3f}" for n in sorted(self.seen))
        print(
            f"{self.minutes():6.1f} min  step {self.steps:5d}  {self.tokens / 1e6:6.2f} M tokens  "
            f"loss {self.loss / REPORT_STEPS:.4f}  whole: {shares}",
            flush=True,
        )
        self.loss = 0.0
        self.seen.clear()
        self.whole.clear()


def step(
    model: Qwen3ForCausalLM,
    layer: Callable[..., torch.Tensor],
    optimizers: list[torch.optim.Optimizer],
    batch: list[TrainingChat],
) -> tuple[torch.Tensor, float]:
    """Take one optimizer step; return which rows were predicted whole (rows,) and the loss."""
    ids, labels, weights, positions = tensors(batch)
    hidden = last_hidden(model, layer, ids, positions).bfloat16().flatten(0, 1)
    wanted = (weights > 0).flatten().nonzero().squeeze(1)
    spare = -len(wanted) % LOGITS_STEP
    places = functional.pad(wanted, (0, spare))
    logits = functional.linear(hidden[places], model.lm_head.weight.bfloat16())
    weight = functional.pad(weights.flatten()[wanted], (0, spare))
    losses = functional.cross_entropy(logits.float(), labels.flatten()[places], reduction="none")
    loss = (losses * weight).sum() / weight.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    right = torch.ones(ids.numel(), dtype=torch.bool)
    right[wanted] = ((losses < LIKELY) | (weight < 1))[: len(wanted)]
    return right.view_as(ids).all(dim=1), loss.item()


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write weights, configurations and tokenizer in the stock layout."""
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        eos_token_id=[MARKER_IDS[IM_END], MARKER_IDS[END_OF_TEXT]],
        pad_token_id=MARKER_IDS[END_OF_TEXT],
    )
    model.save_pretrained(folder)
    save_tokenizer(folder)


def train_phase(
    model: Qwen3ForCausalLM, phase: TrainingPhase, rng: random.Random, out: Path, minutes: float
) -> None:
    """Train for the phase's tokens or ``minutes`` minutes, whichever ends first, and save."""
    tokenizer, optimizers = build_tokenizer(), build_optimizers(model)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    state, saved, done = Progress(), time.monotonic(), 0.0
    waiting: Waiting = {}
    layer = compiled()
    while done < 1:
        for batch in batches(rng, tokenizer, phase.largest_size(done), waiting):
            done = max(state.tokens / phase.tokens, state.minutes() / minutes)
            for optimizer, peak in zip(optimizers, peaks, strict=True):
                optimizer.param_groups[0]["lr"] = peak * phase.rate_factor(done)
            state.note(batch, *step(model, layer, optimizers, batch))
        if time.monotonic() - saved > SAVE_SECONDS:
            save(model, out)
            saved = time.monotonic()
    save(model, out)


def train(out: Path, minutes: float, seed: int, start: Path | None, first: int) -> None:
    """Train the phases from number ``first`` on, from nothing or from the weights of ``start``."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM.from_pretrained(start) if start else build_model()
    model.train()
    whole = sum(phase.tokens for phase in PHASES)
    for number, phase in enumerate(PHASES[first:], start=first):
        print(f"phase {number}: {phase}", flush=True)
        rng = random.Random(seed + number)
        train_phase(model, phase, rng, out, minutes * phase.tokens / whole)


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--minutes", type=float, default=120.0, help="time limit of all phases")
    parser.add_argument("--start", type=Path, help="weights to go on from, not from nothing")
    parser.add_argument("--first-phase", type=int, default=0, help="first phase to train")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    train(given.out, given.minutes, given.seed, given.start, given.first_phase)


if __name__ == "__main__":
    main()
