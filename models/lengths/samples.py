"""Samples of hidden states and remaining lengths: split by request, on disk as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from headway.errors import Code, HeadwayError, invalid
from headway.request import SamplingParams

SPLITS = ("train", "validation", "test")
_SHARES = (0.70, 0.85)  # of requests, by a hash of the prompt
_ARRAYS = ("hidden", "owners", "num_output_tokens", "remaining")


@dataclass(frozen=True, slots=True)
class SampledRequest:
    """A request that came to its own end."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    num_output_tokens: int

    @property
    def split(self) -> str:
        """Return the split: a prompt is always in the same one, however often it was run."""
        digest = hashlib.sha256(np.array(self.prompt_token_ids, "<i8").tobytes()).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64
        return SPLITS[sum(place >= share for share in _SHARES)]


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """Samples in parallel arrays (n,): ``hidden`` (n, d), ``owners`` are places in ``requests``.

    ``num_output_tokens``: generated when the state was computed; ``remaining``: that followed.
    """

    requests: tuple[SampledRequest, ...]
    hidden: NDArray[np.float16]
    owners: NDArray[np.int64]
    num_output_tokens: NDArray[np.int64]
    remaining: NDArray[np.float32]

    def split(self, name: str) -> Collected:
        """Return the samples of one split's requests; ``requests`` stay complete."""
        wanted = np.array([request.split == name for request in self.requests], dtype=bool)
        return self.rows(wanted[self.owners])

    def rows(self, wanted: NDArray[np.bool_]) -> Collected:
        """Return the samples where ``wanted`` (n,) is true; ``requests`` stay complete."""
        arrays = {name: getattr(self, name)[wanted] for name in _ARRAYS}
        return Collected(self.requests, **arrays)

    @property
    def num_prompt_tokens(self) -> NDArray[np.int64]:
        """Return the prompt tokens of each sample's request, (n,)."""
        lengths = [len(request.prompt_token_ids) for request in self.requests]
        return np.array(lengths, dtype=np.int64)[self.owners]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Return the tokens of each sample's prompt and of its output by then, (n, 2)."""
        counts = np.stack([self.num_prompt_tokens, self.num_output_tokens], axis=1)
        return counts.astype(np.float32)


def joined(parts: Sequence[Collected]) -> Collected:
    """Join collections in order; INVALID_ARGUMENT for states of another width."""
    widths = sorted({part.hidden.shape[1] for part in parts})
    if len(widths) > 1:
        raise invalid("the samples' widths", widths, "one: of one model")
    firsts = np.cumsum([0, *(len(part.requests) for part in parts[:-1])])
    owners = [part.owners + first for part, first in zip(parts, firsts, strict=True)]
    return Collected(
        tuple(request for part in parts for request in part.requests),
        np.concatenate([part.hidden for part in parts]),
        np.concatenate(owners),
        np.concatenate([part.num_output_tokens for part in parts]),
        np.concatenate([part.remaining for part in parts]),
    )


def save_samples(collected: Collected, path: Path, about: Mapping[str, Any]) -> None:
    """Write one file; ``about`` (the model, its tokenizer, k) is stored with it."""
    requests = collected.requests
    lengths = [len(request.prompt_token_ids) for request in requests]
    ids = [token_id for request in requests for token_id in request.prompt_token_ids]
    kept = [
        {**asdict(r.sampling), "num_output_tokens": r.num_output_tokens, "split": r.split}
        for r in requests
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            **{name: np.ascontiguousarray(getattr(collected, name)) for name in _ARRAYS},
            "prompt_token_ids": np.array(ids, dtype=np.int64),
            "num_prompt_tokens": np.array(lengths, dtype=np.int64),
        },
        path,
        metadata={"about": json.dumps(dict(about)), "requests": json.dumps(kept)},
    )


def load_samples(path: Path) -> tuple[Collected, Mapping[str, Any]]:
    """Return a file's samples and their ``about``; NOT_FOUND if it is no such file."""
    from safetensors import safe_open

    try:
        arrays = load_file(path)
        with safe_open(path, "numpy") as opened:
            metadata = opened.metadata()
        about, kept = json.loads(metadata["about"]), json.loads(metadata["requests"])
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        message = f"{path} is no file of samples (headway predictor collect): {error}"
        raise HeadwayError(Code.NOT_FOUND, message, param="samples") from error
    prompts = _split_at(arrays["prompt_token_ids"], arrays["num_prompt_tokens"])
    requests = tuple(_request(prompt, one) for prompt, one in zip(prompts, kept, strict=True))
    return Collected(requests, **{name: arrays[name] for name in _ARRAYS}), about


def _split_at(ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> Sequence[tuple[int, ...]]:
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    return [tuple(part.tolist()) for part in parts]


def _request(prompt: tuple[int, ...], kept: dict[str, Any]) -> SampledRequest:
    fields = {name: value for name, value in kept.items() if name not in ("split",)}
    num_output_tokens = fields.pop("num_output_tokens")
    fields["stop_token_ids"] = tuple(fields["stop_token_ids"])
    return SampledRequest(prompt, SamplingParams(**fields), num_output_tokens)
