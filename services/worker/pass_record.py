"""Forward passes as they were, a JSON line each: what ``headway profile fit`` reads.

The first line of a file says what the worker is (``{"worker": …}``).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from headway.cluster import WorkerInfo
from headway.cost.pass_time import Share
from headway.errors import Code, HeadwayError
from headway.forward_pass import ForwardPass

_AT_ONCE = 0.002
"""A pass that begins within so many seconds of the one before it had been waited for."""


class PassRecord:
    """Appends to ``folder/worker_id.jsonl``; passes of workers with one DP unit.

    A pass's time is until the next one begins where that is at once: what lies between two
    passes is part of what a pass costs.
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
        self._next: deque[ForwardPass] = deque()  # behind the one under way
        self._is_flying = False
        self._started_at = self._ended_at = 0.0

    def started(self, forward_pass: ForwardPass, now: float) -> None:
        """A pass begins, s, or will when the one under way ends; the one before it is written."""
        if self._is_flying:
            self._next.append(forward_pass)
            return
        self._is_flying = True
        if self._share is not None:
            is_at_once = now - self._ended_at < _AT_ONCE
            self._put((now if is_at_once else self._ended_at) - self._started_at)
        swaps = forward_pass.swapped_in or forward_pass.swapped_out
        self._share = None if swaps or not forward_pass.items else share_of(forward_pass)
        self._started_at = now

    def ended(self, now: float) -> None:
        """The pass under way has ended, s."""
        self._ended_at, self._is_flying = now, False
        if self._next:
            self.started(self._next.popleft(), now)

    def close(self) -> None:
        """Write the last one."""
        if self._share is not None and self._ended_at > self._started_at:
            self._put(self._ended_at - self._started_at)
        self._file.close()

    def _put(self, seconds: float) -> None:
        assert self._share is not None, "a pass is under way"
        self._write({"seconds": seconds, "units": [self._share._asdict()]})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def share_of(forward_pass: ForwardPass) -> Share:
    """What was in a pass of one DP unit; an item of one token decodes."""
    prefill_tokens = prefill_context = batch = kv_tokens = 0
    for item in forward_pass.items:
        count = len(item.token_ids)
        if count == 1:
            batch += 1
            kv_tokens += item.start + 1
        else:
            prefill_tokens += count
            prefill_context += count * item.start
    return Share(prefill_tokens, prefill_context, batch, kv_tokens)


def _as_dict(info: WorkerInfo) -> dict[str, Any]:
    names = ("worker_id", "model", "chunk_tokens", "block_size", "num_blocks", "max_model_len")
    found = {name: getattr(info, name) for name in (*names, "kv_bytes_per_token")}
    return {**found, "role": info.role.value}
