"""Records forward passes, a JSON line each, for ``headway profile run``.

The first line of a file describes the worker (``{"worker": …}``).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from headway.cluster import WorkerInfo
from headway.cost.pass_time import Share
from headway.engine import EngineStepped
from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass

_AT_ONCE = 0.002
"""Seconds. A pass that begins this soon after the one before did not wait for work."""


class PassRecord:
    """A file ``folder/worker_id.jsonl`` with the passes of a worker with one DP unit.

    A pass that follows at once ends the time of the pass before it: the time between two passes
    is part of what a pass costs. Instants are by the caller's clock. Those of one host's workers
    can be compared.
    """

    def __init__(self, folder: str, info: WorkerInfo) -> None:
        if info.num_units > 1:
            message = f"the worker has {info.num_units} DP units; passes are recorded of one"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="record_passes")
        path = Path(folder) / f"{info.worker_id}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = path.open("w", encoding="utf-8")
        except OSError as error:
            message = f"passes cannot be recorded in {path}: {error}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="record_passes") from error
        self._write({"worker": _as_dict(info)})
        self._share: Share | None = None
        self._next: deque[ForwardPass] = deque()  # queued behind the current one
        self._is_flying = False
        self._started_at = self._ended_at = 0.0

    def started(self, forward_pass: ForwardPass, now: float) -> None:
        """Note that a pass begins at ``now``, s, or is queued; write the pass before it."""
        if self._is_flying:
            self._next.append(forward_pass)
            return
        self._is_flying = True
        swaps = forward_pass.swapped_in or forward_pass.swapped_out
        items = () if swaps else forward_pass.items
        self._begin([(item.start, len(item.token_ids)) for item in items], now)

    def ended(self, now: float) -> None:
        """Note that the pass under way ended at ``now``, s."""
        self._ended_at, self._is_flying = now, False
        if self._next:
            self.started(self._next.popleft(), now)

    def stepped(self, step: EngineStepped) -> None:
        """Note a pass that an engine has planned itself; one without a plan is passed over."""
        if step.plan is not None:
            computed = [(each.start, each.num_tokens) for each in step.plan.computed]
            self._begin(computed, step.ended_at - step.pass_time)
            self._ended_at = step.ended_at

    def close(self) -> None:
        """Write the last pass and close the file."""
        if self._share is not None and self._ended_at > self._started_at:
            self._put(self._ended_at - self._started_at)
        self._file.close()

    def _begin(self, computed: Sequence[tuple[int, int]], now: float) -> None:
        """Begin a pass by what it computes, nothing for one not to be written."""
        if self._share is not None:
            is_at_once = now - self._ended_at < _AT_ONCE
            self._put((now if is_at_once else self._ended_at) - self._started_at)
        self._share = share_of(computed) if computed else None
        self._started_at = now

    def _put(self, seconds: float) -> None:
        assert self._share is not None, "a pass is under way"
        share = self._share._asdict()
        self._write({"seconds": seconds, "began_at": self._started_at, "share": share})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def share_of(computed: Iterable[tuple[int, int]]) -> Share:
    """Return the content of a pass of one DP unit, from where on and how many tokens of each.

    One token decodes.
    """
    prefill_tokens = prefill_context = batch = kv_tokens = 0
    for start, count in computed:
        if count == 1:
            batch += 1
            kv_tokens += start + 1
        else:
            prefill_tokens += count
            prefill_context += count * start
    return Share(prefill_tokens, prefill_context, batch, kv_tokens)


def _as_dict(info: WorkerInfo) -> dict[str, Any]:
    names = ("worker_id", "model", "chunk_tokens", "block_size", "num_blocks", "max_model_len")
    fields = {name: getattr(info, name) for name in (*names, "kv_bytes_per_token")}
    return {**fields, "role": info.role.value}
