"""Moments in the life of a request, and how a worker tells its gateway of them."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class MomentKind(Enum):
    """Something that happened to a request; the gateway saw the first eight itself."""

    SENT = "handed to the scheduler"
    PLACED = "placed on a worker"
    FIRST_TOKEN = "its first token came"
    LEFT = "the last token of this worker came"
    CONTINUES = "a token of another worker came"
    LOST = "its attempt was lost; another one follows"
    PREDICTED = "its output length was predicted"
    PACED = "tokens were held for its reader"

    QUEUED = "queued on a worker"
    ADMITTED = "has KV blocks and takes part in passes"
    COMPUTED = "all of its tokens are computed, and it draws more"
    PREEMPTED = "lost its KV blocks, and its KV has to be computed again"
    SWAPS_OUT = "lost its KV blocks; its KV goes to host memory"
    SWAPS_IN = "has KV blocks again; its KV comes back from host memory"
    SWAPPED = "its KV was copied"
    KV_LOST = "the copy of its KV failed"
    PREFILLED = "its prompt is computed, and it waits for a worker that decodes it"
    DEPARTS = "stopped, while the remainder of its KV goes to another worker"
    ARRIVING = "its KV began to arrive"
    RUNS_ON = "goes on with its KV"
    WAITS_ON = "its KV is in host memory, and it waits for blocks"
    HOLDS_ON = "its KV could not be sent; it waits for another worker"


class Mark(NamedTuple):
    """A worker's news of one request, for the gateway that has its stream.

    ``at``: seconds since the epoch by the host's clock. ``amount``: tokens to compute (ADMITTED,
    SWAPPED), tokens lost (PREEMPTED, SWAPS_OUT), passes since its admission (COMPUTED), tokens
    of the whole output (PREDICTED), else 0.
    """

    stream_id: int
    kind: MomentKind
    at: float
    amount: int = 0
    cause: str = ""


class Moment(NamedTuple):
    """Something that happened to a request, ``at`` microseconds after its arrival.

    ``worker_id``: the worker that it concerns, "" for none. ``amount`` and ``cause``: as in a Mark.
    """

    at: int
    kind: MomentKind
    worker_id: str = ""
    amount: int = 0
    cause: str = ""
