"""The commands of ``headway predictor`` that need torch."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from transformers import AutoTokenizer

from headway.engine import ModelSize
from headway.errors import Code, HeadwayError, invalid, require_between
from models.lengths.baselines import fit_all
from models.lengths.card import card
from models.lengths.collect import Collector, CollectSettings
from models.lengths.measure import PREDICTOR, as_served, best_weight, measure
from models.lengths.prompts import file_chats, prompts, task_chats
from models.lengths.samples import Collected, joined, load_samples, save_samples
from models.lengths.train import Epoch, Trained, TrainSettings, search_space, train
from services.predictor.versions import newest_version, save_version
from services.worker.engine.backend import TorchBackend
from services.worker.engine.options import EngineOptions

_SEARCH_EPOCHS = 20  # of each trial; the best one is then trained in full
_CPU_KV_BYTES = 1 << 30


def collect(args: argparse.Namespace) -> int:
    """Run the model and write the samples."""
    torch.set_num_threads(args.num_threads)
    options = EngineOptions(_num_blocks, device=args.device, num_threads=args.num_threads)
    backend = TorchBackend.load(args.model, options)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    source = task_chats(args.num, args.seed) if args.prompts == "tasks" else None
    chats = source if source is not None else file_chats(Path(args.prompts))[: args.num]
    temperatures = tuple(args.temperature or (0.0, 0.7, 1.0))
    asked = list(prompts(tokenizer, chats, temperatures, args.max_tokens, args.seed))
    if not asked:
        raise invalid("--prompts", args.prompts, "at least one prompt")
    settings = CollectSettings(every=args.every, num_running=args.num_running)
    with _bar("requests", len(asked)) as (progress, task):
        collector = Collector(backend, settings)
        collected = collector.run(asked, lambda done: progress.update(task, completed=done))
    about = {
        "model": Path(args.model).name,
        "source": args.model,
        "tokenizer": type(tokenizer).__name__,
        "vocab_size": len(tokenizer),
        "prompts": args.prompts,
        "every": args.every,
        "temperatures": list(temperatures),
        "max_tokens": args.max_tokens,
        "seed": args.seed,
    }
    save_samples(collected, args.out, about)
    left_out = len(asked) - len(collected.requests)
    print(
        f"{args.out}: {len(collected.remaining):,} samples of {len(collected.requests):,} requests"
        f" ({left_out} did not end by themselves)"
    )
    return 0


def _num_blocks(size: ModelSize) -> int:
    budget = int(0.8 * size.free_bytes) if size.free_bytes is not None else _CPU_KV_BYTES
    return max(1, budget // (16 * size.kv_bytes_per_token))


def train_version(args: argparse.Namespace) -> int:
    """Train on samples, measure against the baselines, write a version."""
    torch.set_num_threads(args.num_threads)
    require_between("--weight", args.weight, 0, 1)
    samples, about = _load(args.samples)
    base = TrainSettings(
        rate=args.rate,
        batch_size=args.batch_size,
        num_epochs=args.epochs,
        patience=args.patience,
        seed=args.seed,
        counts=not args.hidden_only,
    )
    trials = _search(samples, base, args.search) if args.search else []
    best = min(trials, key=lambda trial: trial.error).settings if trials else base
    trained = _train(samples, best, args.epochs)
    print(f"best validation error {trained.error:.2f} tokens; fitting the baselines")
    served = as_served(samples, int(about.get("every", 1)))
    weight = args.weight or best_weight(trained.network, served)
    measured = measure(trained.network, fit_all(samples, args.seed), served, weight)
    made = {"weight": weight, "trained_at": int(time.time())}
    path = _save(args.out, trained, trials, measured, {**about, **made})
    print((path / "README.md").read_text())
    print(f"written: {path}")
    return 0


def _load(paths: Sequence[Path]) -> tuple[Collected, dict[str, Any]]:
    """Return all files' samples, the first file's ``about``, and every file's seed."""
    parts, abouts = zip(*map(load_samples, paths), strict=True)
    every = {about.get("every") for about in abouts}
    if len(every) > 1:
        raise invalid("the samples' k", sorted(every, key=str), "the same in every file")
    about = dict(abouts[0])
    if len(abouts) > 1:
        about["seed"] = [each.get("seed") for each in abouts]
    return joined(parts), about


def _search(samples: Collected, base: TrainSettings, num_trials: int) -> list[Trained]:
    trials = []
    for number, settings in enumerate(search_space(base, num_trials), start=1):
        short = replace(settings, num_epochs=_SEARCH_EPOCHS, patience=5)
        trials.append(train(samples, short))
        print(f"trial {number}: {trials[-1].error:.2f} tokens, {settings.layers} {settings.rate:g}")
    num_epochs, patience = base.num_epochs, base.patience
    return [
        replace(each, settings=replace(each.settings, num_epochs=num_epochs, patience=patience))
        for each in trials
    ]


def _train(samples: Collected, settings: TrainSettings, num_epochs: int) -> Trained:
    with _bar("epochs", num_epochs) as (progress, task):

        def show(epoch: Epoch) -> None:
            errors = f"validation {epoch.validation_error:.2f}, training {epoch.train_error:.2f}"
            progress.update(task, completed=epoch.number, description=f"epochs, {errors}")

        return train(samples, settings, show)


def _save(
    folder: Path,
    trained: Trained,
    trials: list[Trained],
    measured: Mapping[str, Any],
    about: Mapping[str, Any],
) -> Path:
    path = save_version(folder, trained.network, about)
    curves = {"trained": trained.curve(), "search": [trial.curve() for trial in trials]}
    (path / "curves.json").write_text(json.dumps(curves, indent=1) + "\n")
    (path / "metrics.json").write_text(json.dumps(measured, indent=1) + "\n")
    (path / "README.md").write_text(card(about, trained.network, measured))
    return path


def show(args: argparse.Namespace) -> int:
    """Print the card of a folder's newest version."""
    version = newest_version(args.folder)
    path = args.folder / version / "README.md"
    if not (version and path.is_file()):
        message = f"{args.folder} holds no predictor (headway predictor train)"
        raise HeadwayError(Code.NOT_FOUND, message)
    measured = json.loads((path.parent / "metrics.json").read_text())
    print(path.read_text())
    print(f"version {version}: {measured['mae']['validation'][PREDICTOR]} tokens on validation")
    return 0


@contextmanager
def _bar(what: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress, progress.add_task(what, total=total)
