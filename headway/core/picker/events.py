"""Events and actions of the picker's core, and what is known of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from headway.blocks import BlockHash
from headway.cluster import Role
from headway.core.scheduler.events import Decision, Note
from headway.request import Request, StreamKey

MOST_TOKENS = 2**31 - 1
"""The longest request of an endpoint that does not say how long its requests may be."""
UNKNOWN_BLOCKS = 1 << 20
"""Blocks of an endpoint that does not say how many it has: it is never found full."""


class Ends(Enum):
    """How the ends of an endpoint's forward passes are known."""

    EXACT = "exact"  # the endpoint reports each step
    INFERRED = "inferred"  # from the KV events of each step
    GUESSED = "guessed"  # from the clock, corrected by metrics and by responses


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """An endpoint as its file describes it; ``address`` is ``ip:port``.

    ``chunk_tokens``: most tokens of one of its passes (vLLM's ``max_num_batched_tokens``).
    ``has_metrics``: False if nobody scrapes it; responses alone say then whether it lives.
    ``role``: PREFILL computes prompts alone, DECODE takes KV from those and whole requests, too.
    """

    address: str
    model: str
    chunk_tokens: int = 8192
    max_model_len: int = MOST_TOKENS
    has_metrics: bool = True
    role: Role = Role.UNIFIED


@dataclass(frozen=True, slots=True)
class EndpointMetrics:
    """One scrape of ``/metrics``: gauges, and counters since the endpoint's start.

    ``kv_usage``: share of its blocks in use. ``num_blocks``: 0 if it does not say.
    ``computed_tokens``: prompt tokens without cached ones and those that another endpoint computed.
    ``prefill_seconds``: of all requests. ``num_prompts``: those counted so; 0 if it does not say.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    num_blocks: int = 0
    block_size: int = 16
    computed_tokens: float = 0.0
    prefill_seconds: float = 0.0
    output_tokens: float = 0.0
    num_prompts: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Blocks that an endpoint has cached, one after the other (vLLM's ``BlockStored``)."""

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: Sequence[int]
    block_size: int
    salt: str = ""


# --- events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PickAsked:
    """A gateway's question where a request shall go, and when.

    ``among``: the only endpoints that may be named (a subset hint); None for any.
    """

    request: Request
    among: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PickAskedAtOnce:
    """The same for a request without a prompt, which no window holds."""

    key: StreamKey
    among: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Responded:
    """The beginning of a response; ``served``: by which endpoint, "" if the gateway has not said.

    ``failed``: True if no endpoint has answered, or one that cannot serve.
    """

    key: StreamKey
    served: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class PickEnded:
    """The end of a request at its gateway: answered, failed, or its client has left."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class EndpointListed:
    """An endpoint that there is from now on, or whose description has changed."""

    info: EndpointInfo


@dataclass(frozen=True, slots=True)
class EndpointUnlisted:
    """An endpoint that gets no request any more; those that it has go on."""

    address: str


class Silence(Enum):
    """Why a scrape has no figures."""

    REFUSED = "it refuses connections"
    TIMEOUT = "it does not answer"
    NO_METRICS = "it answers, but has no metrics that can be read"


@dataclass(frozen=True, slots=True)
class Scraped:
    """The result of a scrape that was begun at ``begun_at``."""

    address: str
    result: EndpointMetrics | Silence
    begun_at: float = -inf


@dataclass(frozen=True, slots=True)
class KvChanged:
    """The KV events of one step, or of several.

    ``is_cleared``: everything was forgotten before. ``is_complete``: False if events before these
    were lost for good.
    """

    address: str
    stored: tuple[StoredBlocks, ...] = ()
    removed: tuple[BlockHash, ...] = ()
    is_cleared: bool = False
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Stepped:
    """The end of an endpoint's forward pass, as the plug-in inside it reports.

    ``seconds``: the pass's time. ``num_running`` hold blocks, ``num_waiting`` wait for some.
    ``is_complete``: False if reports before this one were lost.
    """

    address: str
    seconds: float
    prefill_tokens: int
    num_running: int
    num_waiting: int
    free_blocks: int
    num_blocks: int
    block_size: int
    is_complete: bool = True


PickerEvent = (
    PickAsked
    | PickAskedAtOnce
    | Responded
    | PickEnded
    | EndpointListed
    | EndpointUnlisted
    | Scraped
    | KvChanged
    | Stepped
)

# --- actions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pick:
    """The answer: these endpoints, in the order in which they are to be tried.

    ``prefiller``: the endpoint that computes the prompt before, "" if they do it themselves.
    """

    key: StreamKey
    endpoints: tuple[str, ...]
    rule: str
    prefiller: str = ""


class WhyRefused(Enum):
    """Why a request gets no endpoint."""

    NONE_READY = "none ready"  # HTTP 503
    SHED = "shed"  # HTTP 429


@dataclass(frozen=True, slots=True)
class Refuse:
    """No endpoint; ``retry_after`` in seconds, 0 for no hint."""

    key: StreamKey
    reason: WhyRefused
    message: str
    retry_after: float = 0.0


PickerAction = Pick | Refuse | Note | Decision


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One endpoint at one instant, for logs and metrics."""

    address: str
    health: str
    ends: Ends
    num_requests: int
    owed_tokens: int
    seconds_per_token: float


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """``longest_hold``: seconds after which a request that waits goes to the best guess.

    ``num_fallbacks``: endpoints named behind the first. ``first_pass``: seconds that a pass of a
    full chunk is taken to last, at the least, while nothing has been measured. ``split_from``: a
    prompt that takes a decode endpoint so many seconds is computed elsewhere.
    """

    longest_hold: float = 5.0
    num_fallbacks: int = 2
    first_pass: float = 0.05
    split_from: float = 0.1
    rests: tuple[float, float] = field(default=(1.0, 30.0))
    """Seconds, first and longest, without requests for an endpoint that failed and that nobody
    scrapes."""
