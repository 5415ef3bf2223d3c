"""Whole passes of the card's decoder beside transformers' own, both against its float32.

Prompts in chunks, prompts beside decodes, and decode passes from recorded graphs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from bench.card.cases import Shape
from bench.card.engine import GREEDY, network
from headway.forward_pass import PassItem
from headway.request import StreamKey
from services.worker.engine.kv.pool import DTYPES, KvPool
from services.worker.engine.layout import LayoutBuilder
from services.worker.engine.model.kernel_decoder import KernelDecoder
from services.worker.engine.model.loaded import LoadedModel, take_model

NUM_LAYERS = 2
LENGTHS = (70, 300, 700)
FEW_LENGTHS = (7, 30, 21)
NUM_DECODED = 4
"""Tokens of each sequence that are decoded one by one, all sequences together."""
RECORDED = (1, 2, 4)
ALLOWANCE = 1.5
"""Our error over transformers' own, in the same dtype."""


@dataclass(frozen=True, slots=True)
class ChunkOf:
    """Tokens ``start`` to ``stop`` of a sequence, in one pass with others."""

    sequence: int
    start: int
    stop: int


def check(
    shape: Shape, device: torch.device, dtypes: Sequence[str], *, is_small: bool, block_size: int
) -> Iterator[dict[str, object]]:
    """Yield by dtype the greatest relative error of a sequence's logits: ours, and theirs."""
    lengths = FEW_LENGTHS if is_small else LENGTHS
    few_layers = replace(shape, num_layers=NUM_LAYERS)
    rng = random.Random(0)
    sequences = [[rng.randrange(shape.vocab_size) for _ in range(length)] for length in lengths]
    for dtype in dtypes:
        model = network(few_layers, device, "float32")
        ids = [torch.tensor([sequence], device=device) for sequence in sequences]
        expected = [model(input_ids=each, use_cache=False).logits[0] for each in ids]
        model.to(DTYPES[dtype])
        theirs = [model(input_ids=each, use_cache=False).logits[0] for each in ids]
        run = PassesRun(take_model(model, (), "triton"), device, sequences, block_size)
        rows = list(run.logits())
        yield {
            "dtype": dtype,
            "block_size": block_size,
            "error": max(relative(row, expected[n][at]) for n, at, row in rows),
            "their_error": max(
                relative(row, wanted[at])
                for wanted, logits in zip(expected, theirs, strict=True)
                for at, row in enumerate(logits)
                if at in _places(len(wanted))
            ),
            "num_rows": len(rows),
        }


def is_wrong(row: dict[str, object], floor: float = 1e-5) -> bool:
    """Return whether our error is more than transformers' own, or not a number."""
    ours, theirs = float(str(row["error"])), float(str(row["their_error"]))
    return not ours <= ALLOWANCE * theirs + floor


def relative(row: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the expected norm."""
    return float((row.float() - wanted).norm() / wanted.norm())


def _places(length: int) -> set[int]:
    """Return the tokens whose logits are compared: the ends of a sequence's parts."""
    return {part.stop - 1 for each in _passes([length]) for part in each}


def _passes(lengths: Sequence[int]) -> list[list[ChunkOf]]:
    """Return chunks of all sequences; the rest, the first sequence decoding; then decodes."""
    ends = [length - NUM_DECODED for length in lengths]
    halves = [end // 2 for end in ends]
    first = [ChunkOf(n, 0, half) for n, half in enumerate(halves)]
    first[0] = ChunkOf(0, 0, ends[0] - 1)
    second = [ChunkOf(n, half, ends[n]) for n, half in enumerate(halves)]
    second[0] = ChunkOf(0, ends[0] - 1, ends[0])
    decodes = [
        [ChunkOf(n, end + step, end + step + 1) for n, end in enumerate(ends)]
        for step in range(NUM_DECODED)
    ]
    return [first, second, *decodes]


class PassesRun:
    """Passes of some sequences over a pool whose blocks lie in a random order."""

    def __init__(
        self,
        model: LoadedModel,
        device: torch.device,
        sequences: Sequence[Sequence[int]],
        block_size: int,
    ) -> None:
        self._model, self._sequences = model, sequences
        counts = [-(-len(sequence) // block_size) for sequence in sequences]
        blocks = list(range(sum(counts)))
        random.Random(1).shuffle(blocks)
        self._tables = [tuple(blocks.pop() for _ in range(count)) for count in counts]
        self._pool = KvPool(model.kv_shape, sum(counts), block_size, device)
        decoder = model.decoder
        assert isinstance(decoder, KernelDecoder), "its kernels are what is checked"
        decoder.prepare(self._pool, None, RECORDED)
        self._decoder = decoder
        self._layouts = LayoutBuilder(
            self._pool, model.vocab_size, model.max_model_len, decoder.reads
        )

    def logits(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield sequence, place and logits (vocabulary,) of the last token of every part."""
        for parts in _passes([len(sequence) for sequence in self._sequences]):
            layout = self._layouts.build([self._item(part) for part in parts])
            states = self._decoder(layout.token_ids, layout.positions, layout.batch)
            logits = self._model.lm_head(states)
            for part, row in zip(parts, layout.last_rows.tolist(), strict=True):
                yield part.sequence, part.stop - 1, logits[row].clone()

    def _item(self, part: ChunkOf) -> PassItem:
        ids = tuple(self._sequences[part.sequence][part.start : part.stop])
        key, table = StreamKey("check", part.sequence), self._tables[part.sequence]
        return PassItem(key, ids, part.start, table, True, GREEDY, ids, ())
