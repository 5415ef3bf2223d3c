"""A checkpoint with random weights, made where it is served: speed does not depend on weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.card.cases import Shape
from bench.card.engine import network
from services.runtime.rooms import model_folder

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def save_checkpoint(
    folder: Path, shape: Shape, max_model_len: int, device: torch.device, dtype: str
) -> Path:
    """Write such a checkpoint, unless the folder holds one; return the folder.

    Its tokenizer is the small model's, with a word for every further id: what a random model draws
    becomes text, as any answer does. It names no end of sequence: answers end by their length.
    """
    if (folder / "config.json").is_file():
        return folder
    words = _tokenizer(shape.vocab_size)
    shape = replace(shape, vocab_size=len(words["model"]["vocab"]))
    served = replace(shape, max_model_len=max_model_len)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _TOKENIZER[0]).write_text(json.dumps(words), encoding="utf-8")
    settings = json.loads(_small(_TOKENIZER[1]).read_text("utf-8"))
    settings["model_max_length"] = max_model_len
    (folder / _TOKENIZER[1]).write_text(json.dumps(settings), encoding="utf-8")
    network(served, device, dtype).save_pretrained(folder)  # config.json is its last file
    return folder


def _small(name: str) -> Path:
    return Path(model_folder("")) / name


def _tokenizer(vocab_size: int) -> dict[str, Any]:
    """Return the small model's tokenizer with words for ids up to ``vocab_size``."""
    tokenizer: dict[str, Any] = json.loads(_small(_TOKENIZER[0]).read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    # A gap in the vocabulary would give its markup other ids.
    vocab |= {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    for token_id in range(len(vocab), vocab_size):
        vocab[f"w{token_id}"] = token_id
    return tokenizer
