"""The layout of a plan as tensors: one flattened batch, where its rows go and what they read.

Rows are ordered so that every kind of work is a slice: first the one-token items, longest context
first (neighbours in one decode group waste little padding), then the prompts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headway.engine import PassFailure
from headway.forward_pass import PassItem
from services.worker.engine.attention import (
    Contexts,
    DecodeGroup,
    PagedBatch,
    PrefillSpan,
    Reads,
)
from services.worker.engine.kv.pool import DTYPES, KvPool
from services.worker.engine.transfer import sent

Ints = NDArray[np.int64]

# Another decode group costs each layer about as much time as this many padded tokens.
MAX_WASTED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class PassLayout:
    """A plan as tensors; ``token_ids`` and ``positions`` are (rows,).

    ``sampling_rows`` are the rows to draw from, None where that is all of them;
    ``sampling_items`` are the positions of their items in the plan. ``last_rows`` are the rows
    of the items' last tokens, by position in the plan.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    batch: PagedBatch
    sampling_rows: torch.Tensor | None
    sampling_items: tuple[int, ...]
    last_rows: Ints
    adapted: Mapping[str, torch.Tensor]
    """Rows that have an adapter, by its name."""


class LayoutBuilder:
    """A builder of layouts; it refuses items that the model or the pool cannot hold."""

    def __init__(
        self,
        pool: KvPool,
        vocab_size: int,
        max_model_len: int,
        reads: Reads = Reads.SLOTS,
        adapters: Collection[str] = (),
    ) -> None:
        """Prepare for a pool and a model; ``reads``: how the decoder reads contexts."""
        self._pool = pool
        self._adapters = ("", *adapters)
        self._reads = reads
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._device = pool.keys[0].device
        self._dtype = DTYPES[pool.shape.dtype]

    def build(self, items: Sequence[PassItem]) -> PassLayout:
        """Lay out a plan of at least one item."""
        for item in items:
            self._check_shape(item)
        order = sorted(range(len(items)), key=lambda i: _rank(items[i], i))
        ordered = [items[i] for i in order]
        rows = _Rows.of(ordered, self._pool.block_size)
        self._check_values(ordered, rows)
        last_rows = rows.firsts + rows.counts - 1
        sampling = [n for n, item in enumerate(ordered) if item.sample]
        whole = len(sampling) == rows.num_rows
        return PassLayout(
            token_ids=self._tensor(rows.token_ids),
            positions=self._tensor(rows.positions),
            batch=self._batch(rows),
            sampling_rows=None if whole else self._tensor(last_rows[sampling]),
            sampling_items=tuple(order[n] for n in sampling),
            last_rows=last_rows[np.argsort(order)],
            adapted=self._adapted(ordered, rows),
        )

    # --- checks -----------------------------------------------------------------------

    def _check_shape(self, item: PassItem) -> None:
        """Refuse an item whose sizes contradict each other, which numpy would not notice."""
        stop = item.start + len(item.token_ids)
        if item.start < 0 or not item.token_ids:
            problem = f"its share is {len(item.token_ids)} tokens from position {item.start}"
        elif stop > self._max_model_len:
            problem = f"it reaches {stop} tokens, the model's limit is {self._max_model_len}"
        elif len(item.block_table) * self._pool.block_size < stop:
            held = len(item.block_table) * self._pool.block_size
            problem = f"its block table holds {held} tokens, the pass needs {stop}"
        elif item.adapter not in self._adapters:
            problem = f"its adapter is {item.adapter!r}; there are: {', '.join(self._adapters[1:])}"
        else:
            return
        raise PassFailure([item.key], f"{_name(item)}: {problem}")

    def _check_values(self, items: Sequence[PassItem], rows: _Rows) -> None:
        """Refuse ids outside the vocabulary and the pool."""
        wrong = (rows.token_ids < 0) | (rows.token_ids >= self._vocab_size)
        _refuse(items, rows.item_of_row, wrong, rows.token_ids, f"token id < {self._vocab_size}")
        num_blocks = self._pool.num_blocks
        wrong = (rows.blocks < 0) | (rows.blocks >= num_blocks)
        _refuse(items, rows.item_of_block, wrong, rows.blocks, f"block id < {num_blocks}")
        is_unique = len(set(rows.slots.tolist())) == rows.num_rows
        assert is_unique, "the core gives every row a KV slot of its own"

    # --- tensors ----------------------------------------------------------------------

    def _batch(self, rows: _Rows) -> PagedBatch:
        num_decodes, num_all = int((rows.counts == 1).sum()), len(rows.counts)
        slots = self._tensor(rows.slots)
        if self._reads is Reads.TABLES:
            return PagedBatch(
                self._pool, slots, contexts=self._contexts(rows, num_decodes, num_all)
            )
        if self._reads is Reads.ROWS_BY_TABLE:
            return PagedBatch(self._pool, slots, contexts=self._contexts_of_rows(rows))
        prefills = tuple(self._prefill_span(rows, n) for n in range(num_decodes, num_all))
        if self._reads is Reads.DECODES_BY_TABLE:
            contexts = self._contexts(rows, num_decodes, num_decodes) if num_decodes else None
            return PagedBatch(self._pool, slots, prefills=prefills, contexts=contexts)
        groups = _groups(rows.contexts[:num_decodes])
        decodes = tuple(self._decode_group(rows, *group) for group in groups)
        return PagedBatch(self._pool, slots, decodes, prefills)

    def _adapted(self, items: Sequence[PassItem], rows: _Rows) -> Mapping[str, torch.Tensor]:
        names = [item.adapter for item in items]
        if not any(names):
            return {}
        of_row = np.array(names)[rows.item_of_row]
        return {
            name: self._tensor(np.flatnonzero(of_row == name))
            for name in self._adapters[1:]
            if name in names
        }

    def _contexts(self, rows: _Rows, num_decodes: int, num_requests: int) -> Contexts:
        """Return the contexts of the first ``num_requests`` requests."""
        tables = _tables(rows, num_requests)
        ends = np.cumsum(rows.counts[num_decodes:num_requests], dtype=np.int32)
        return Contexts(
            num_decodes=num_decodes,
            tables=self._tensor(tables),
            lengths=self._tensor(rows.contexts[:num_requests].astype(np.int32)),
            firsts=self._tensor(np.insert(ends, 0, 0)) if len(ends) else None,
        )

    def _contexts_of_rows(self, rows: _Rows) -> Contexts:
        """Return the context of every row, up to its own token."""
        tables = _tables(rows, len(rows.counts))[rows.item_of_row]
        lengths = (rows.positions + 1).astype(np.int32)
        return Contexts(len(lengths), self._tensor(tables), self._tensor(lengths), None)

    def _decode_group(self, rows: _Rows, first: int, stop: int) -> DecodeGroup:
        lengths = rows.contexts[first:stop, None]
        num_blocks = -(-int(lengths[0, 0]) // self._pool.block_size)
        columns = np.arange(num_blocks)
        # Beyond a short table these are its neighbours' entries: replaced below.
        entries = np.minimum(rows.tables[first:stop, None] + columns, len(rows.blocks) - 1)
        offsets = np.arange(self._pool.block_size)
        slots = rows.blocks[entries][:, :, None] * self._pool.block_size + offsets
        slots = slots.reshape(stop - first, -1)[:, : lengths[0, 0]]
        padding = np.arange(lengths[0, 0]) >= lengths
        slots = np.where(padding, slots[:, :1], slots)
        mask = self._mask(padding)[:, None, None] if padding.any() else None
        return DecodeGroup(first, stop, self._tensor(slots.reshape(-1)), mask)

    def _prefill_span(self, rows: _Rows, n: int) -> PrefillSpan:
        first, count = int(rows.firsts[n]), int(rows.counts[n])
        context = int(rows.contexts[n])
        if context == count:
            return PrefillSpan(first, first + count, None, None)
        size = self._pool.block_size
        where = np.arange(context)
        slots = rows.blocks[rows.tables[n] + where // size] * size + where % size
        later = where > np.arange(context - count, context)[:, None]
        return PrefillSpan(first, first + count, self._tensor(slots), self._mask(later))

    def _tensor(self, array: Ints | NDArray[np.int32]) -> torch.Tensor:
        return sent(torch.from_numpy(array), self._device)

    def _mask(self, hidden: NDArray[np.bool_]) -> torch.Tensor:
        """Return 0 where a query sees a key, minus infinity where it is hidden."""
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(torch.from_numpy(hidden).to(self._device), float("-inf"))


@dataclass(frozen=True, slots=True)
class _Rows:
    """A plan as flat arrays, in layout order.

    Per item: ``counts`` tokens, ``firsts`` row, ``contexts`` tokens with this pass's,
    ``tables`` first entry in ``blocks``. Per row: the rest.
    """

    counts: Ints
    firsts: Ints
    contexts: Ints
    tables: Ints
    blocks: Ints
    item_of_block: Ints
    item_of_row: Ints
    token_ids: Ints
    positions: Ints
    slots: Ints

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def of(items: Sequence[PassItem], block_size: int) -> _Rows:
        counts = np.array([len(item.token_ids) for item in items], np.int64)
        contexts = np.array([item.start for item in items], np.int64) + counts
        num_entries = -(-contexts // block_size)
        token_ids: list[int] = []
        blocks: list[int] = []
        for item, entries in zip(items, num_entries.tolist(), strict=True):
            token_ids += item.token_ids
            blocks += item.block_table[:entries]
        firsts, tables = _starts(counts), _starts(num_entries)
        item_of_row = np.repeat(np.arange(len(items)), counts)
        positions = np.arange(len(token_ids)) + (contexts - counts - firsts)[item_of_row]
        table = np.array(blocks, np.int64)
        entry = tables[item_of_row] + positions // block_size
        return _Rows(
            counts=counts,
            firsts=firsts,
            contexts=contexts,
            tables=tables,
            blocks=table,
            item_of_block=np.repeat(np.arange(len(items)), num_entries),
            item_of_row=item_of_row,
            token_ids=np.array(token_ids, np.int64),
            positions=positions,
            slots=table[entry] * block_size + positions % block_size,
        )


def _tables(rows: _Rows, num_requests: int) -> NDArray[np.int32]:
    """Return the first requests' block tables (requests, blocks), filled up with zeros."""
    num_entries = np.diff(rows.tables, append=len(rows.blocks))[:num_requests]
    held = np.arange(num_entries.max()) < num_entries[:, None]
    tables = np.zeros(held.shape, np.int32)
    tables[held] = rows.blocks[: num_entries.sum()]
    return tables


def _starts(counts: Ints) -> Ints:
    """Return where each group begins, if groups of these sizes follow each other."""
    return np.cumsum(counts) - counts


def _rank(item: PassItem, position: int) -> tuple[bool, int, int]:
    decodes = len(item.token_ids) == 1
    return not decodes, -item.start if decodes else 0, position


def _groups(contexts: Ints) -> Iterator[tuple[int, int]]:
    """Cut falling context lengths where padding to a group's first would waste too much."""
    first, wasted = 0, 0
    lengths = contexts.tolist()
    for n, length in enumerate(lengths):
        wasted += lengths[first] - length
        if wasted > MAX_WASTED_TOKENS:
            yield first, n
            first, wasted = n, 0
    if lengths:
        yield first, len(lengths)


def _name(item: PassItem) -> str:
    return f"request {item.key.gateway_id}/{item.key.stream_id}"


def _refuse(
    items: Sequence[PassItem],
    item_of: Ints,
    wrong: NDArray[np.bool_],
    values: Ints,
    expected: str,
) -> None:
    """Raise PassFailure with the items of the ``wrong`` entries, naming the first value."""
    if not wrong.any():
        return
    blamed = [items[n] for n in np.unique(item_of[wrong]).tolist()]
    value = values[wrong][0]
    message = f"{_name(blamed[0])}: {value} is not a {expected}"
    raise PassFailure([item.key for item in blamed], message)
