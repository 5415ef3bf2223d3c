"""Low-rank adapters (LoRA) beside a model's matrix products.

A pass may mix requests with different adapters and with none. Each product is computed for all
rows with the model's own weights. Then the rows of each adapter are gathered, multiplied by its two
narrow matrices, and added to what they have: ``x · Wᵀ + s · (x · Aᵀ) · Bᵀ``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch.nn.functional import linear

from headway.cluster import Adapter
from services.worker.engine.cpu.linear import Adaptable
from services.worker.engine.model.adapter_files import (
    WEIGHTS,
    AdapterFiles,
    check_adapter,
    unserved,
)

RowsByAdapter = Mapping[str, torch.Tensor]
"""The rows of a pass that have an adapter, by its name: int64."""
_NAME = re.compile(
    r"base_model\.model\.(?:model\.)*(?:language_model\.)?(?:model\.)?"
    r"(layers\.[0-9]+\..+)\.lora_([AB])(?:\.default)?\.weight"
)


class Product(NamedTuple):
    """A matrix product of transformers, as a decoder has it: columns of one of its matrices."""

    matrix: Adaptable
    first: int
    num_outputs: int
    num_inputs: int


class Adapted(Protocol):
    """A decoder whose products take adapters."""

    adapter_rows: AdapterRows

    def products(self) -> Iterator[tuple[str, Product]]:
        """Yield the products by transformers' names, from ``layers.`` on."""


@dataclass(slots=True)
class AdapterRows:
    """The rows of the pass under way that have an adapter."""

    by_adapter: RowsByAdapter = field(default_factory=dict)


class _LowRank(NamedTuple):
    """One adapter's part in one product: A (rank, inputs), and B scaled (outputs, rank)."""

    first: int
    down: torch.Tensor
    up: torch.Tensor


class _Sum:
    """The adapters' sum for the products of one matrix; an ``Addition``."""

    def __init__(self, rows: AdapterRows) -> None:
        self._rows = rows
        self.parts: defaultdict[str, list[_LowRank]] = defaultdict(list)

    def __bool__(self) -> bool:
        """Return whether it changes a row of the pass under way."""
        return any(name in self.parts for name in self._rows.by_adapter)

    def __call__(self, rows: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """Return ``product`` with the adapters' parts added, in place."""
        for name, places in self._rows.by_adapter.items():
            if name in self.parts:
                own = rows.index_select(0, places)
                for first, down, up in self.parts[name]:
                    columns = product[:, first : first + len(up)]
                    columns.index_add_(0, places, linear(linear(own, down), up))
        return product


def put_adapters(
    decoder: Adapted, lora: Mapping[str, str], dtype: torch.dtype, device: torch.device
) -> tuple[Adapter, ...]:
    """Read adapters, folders by name, and put them beside the decoder's products.

    Raises HeadwayError: NOT_FOUND or FAILED_PRECONDITION, with what is not served.
    """
    if not lora:
        return ()
    products = dict(decoder.products())
    sums: dict[int, _Sum] = {}
    adapters = []
    for name, path in sorted(lora.items()):
        files = check_adapter(name, path)
        weights = _read(files)
        for target, (down, up) in _halves(files, weights).items():
            product = products.get(target)
            if product is None:
                raise unserved(name, f"it adapts {target!r}, which this model does not have")
            rank = len(down)
            shapes = (rank, product.num_inputs), (product.num_outputs, rank)
            if (down.shape, up.shape) != shapes:
                given = f"{tuple(down.shape)} and {tuple(up.shape)}"
                raise unserved(name, f"{target!r} is adapted by {given}; it needs {shapes}")
            matrix = product.matrix
            total = sums.setdefault(id(matrix), _Sum(decoder.adapter_rows))
            matrix.addition = total
            scaled = up.float() * files.scale(rank)
            parts = down.to(device, dtype, copy=True), scaled.to(device, dtype)
            if not all(bool(part.isfinite().all()) for part in parts):
                raise unserved(name, f"{target!r} is adapted by weights that are not finite")
            total.parts[name].append(_LowRank(product.first, *parts))
        adapters.append(Adapter(name, files.digest(weights)))
    return tuple(adapters)


def _read(files: AdapterFiles) -> bytes:
    try:
        return (files.folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise unserved(files.name, f"its {WEIGHTS} cannot be read ({error})") from error


def _halves(files: AdapterFiles, weights: bytes) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return A and B by the product that they adapt."""
    try:
        tensors = load(weights)
    except SafetensorError as error:
        raise unserved(files.name, f"its {WEIGHTS} cannot be read ({error})") from error
    halves: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in sorted(tensors.items()):
        match = _NAME.fullmatch(name)
        if match is None:
            raise unserved(files.name, f"it has {name!r}; layers' LoRA matrices alone are served")
        target, half = match.groups()
        if tensor.dim() != 2 or not tensor.numel() or not tensor.is_floating_point():
            raise unserved(files.name, f"{name!r} is no matrix of numbers")
        if half in halves[target]:
            raise unserved(files.name, f"it has lora_{half} of {target!r} twice")
        halves[target][half] = tensor
    for target, pair in halves.items():
        if len(pair) < 2:
            raise unserved(files.name, f"{target!r} has lora_{min(pair)} alone")
    return {target: (pair["A"], pair["B"]) for target, pair in halves.items()}
