"""Messages between the services: the events and actions of the cores.

Each message of ``protos/`` that a core reads or writes has its dataclass here. Only the wire
(``services.runtime.wire``) maps between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf

from headway.blocks import BlockHash
from headway.cluster import TOKEN_LAYOUT, Role, UnitLoad, WorkerInfo
from headway.errors import Code, require_between
from headway.life.moments import Mark
from headway.request import FinishReason, Request, StreamKey, TokenLogprobs

MIN_GAMMA, MAX_GAMMA = 1e-9, 1e9  # 1/s
MAX_COST = 3600.0  # seconds
_MOST = 1e9  # seconds, or tokens, that a peer may claim

# --- gateway and scheduler ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placed:
    """The worker that has a request, and the worker that it is moving to; "" for none.

    A gateway takes tokens from these two alone.
    """

    key: StreamKey
    worker_id: str
    unit: int
    role: Role
    target_worker_id: str = ""
    reason: str = ""
    """The rule that dispatched the request; "" if another leader did."""
    waited_us: int = 0
    """Microseconds from the news that it waits to the last dispatch or placement; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The refusal of a request; ``retry_after`` in seconds, 0 for no hint."""

    key: StreamKey
    code: Code
    message: str
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss of the worker that had these requests: submit them again."""

    keys: tuple[StreamKey, ...]
    reason: str
    died: bool = False
    """True if their worker had taken them, and died or cannot be reached."""
    process_id: str = ""
    """The process that has died or cannot be reached, "" if it is not known."""
    worker_id: str = ""
    """The worker whose process that is, "" if it is not said."""


@dataclass(frozen=True, slots=True)
class WorkerReached:
    """A worker's process that the leader has reached; if it called it lost before, it lives."""

    worker_id: str
    process_id: str


@dataclass(frozen=True, slots=True)
class GatewayHello:
    """A gateway's first message to the scheduler."""

    gateway_id: str
    address: str


@dataclass(frozen=True, slots=True)
class CancelStream:
    """An order to stop a request and free its blocks; unknown keys are ignored."""

    key: StreamKey


ToScheduler = Request | CancelStream
FromGateway = GatewayHello | ToScheduler
ToGateway = Placed | Rejected | Lost | WorkerReached


def named_in(message: ToGateway) -> tuple[StreamKey, ...]:
    """Return the attempts that a message to a gateway is about."""
    match message:
        case Lost(keys):
            return keys
        case WorkerReached():
            return ()
        case _:
            return (message.key,)


# --- scheduler and worker -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WantedReports:
    """Reports that a scheduler's policies read besides those every worker sends.

    A hello has those that are always read. An order replaces them, whenever there is a choice.
    Values out of range are refused (HeadwayError).
    """

    phases: bool = False
    """True if loads include phases (PASCAL)."""
    load_interval: float = inf
    """Seconds between reports of running requests (STAR), inf for none."""
    num_steps: int = 16
    """Steps over which these reports simulate the load."""
    step_tokens: int = 128
    """Tokens of a step."""
    lengths: bool = False
    """True if remaining lengths in these reports are read."""
    work: bool = False
    """True if passes are added up for velocities."""

    def __post_init__(self) -> None:
        require_between("load_interval", self.load_interval, 0, inf)
        require_between("num_steps", self.num_steps, 1, 4096)
        require_between("step_tokens", self.step_tokens, 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class ControlHello:
    """A scheduler's first message to a worker; the newest fencing token wins.

    ``worker_id``: the worker that it means, "" for whichever has the address.
    """

    scheduler_id: str
    fencing_token: int
    wants: WantedReports = WantedReports()
    worker_id: str = ""


@dataclass(frozen=True, slots=True)
class UnitBatch:
    """Requests for one DP unit."""

    unit: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Requests for one instance and forward pass; a repeat of the id is harmless."""

    dispatch_id: int
    batches: tuple[UnitBatch, ...]


@dataclass(frozen=True, slots=True)
class Handoff:
    """An order to send a prefilled request's KV to this unit.

    A target that has greeted a leader with a newer fencing token refuses the KV.
    """

    key: StreamKey
    target_worker_id: str
    target_address: str
    target_unit: int
    fencing_token: int


@dataclass(frozen=True, slots=True)
class CancelHandoff:
    """An order to end the transfer to this target, which is gone; the result follows as failed."""

    key: StreamKey
    target_worker_id: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """An order to hand back those requests of which nothing has been computed; others continue."""

    keys: tuple[StreamKey, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """An order to take no new request; running ones continue until they move or end."""


@dataclass(frozen=True, slots=True)
class ChangeRole:
    """An order to take another role without a restart; running requests continue meanwhile."""

    role: Role


@dataclass(frozen=True, slots=True)
class Tuned:
    """γ of a model's workers (γ-Ada), fitted from end-to-end latencies; 1/s.

    Values out of range are refused (HeadwayError).
    """

    gamma: float

    def __post_init__(self) -> None:
        require_between("gamma", self.gamma, MIN_GAMMA, MAX_GAMMA)


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that a worker has queued or holds KV for; one that is ``decoding`` can move.

    ``arriving``: its KV is coming from another worker, which holds the request until then.
    ``predicted_remaining``: output tokens still to come, 0 if unknown.
    """

    key: StreamKey
    request_id: str
    unit: int
    num_tokens: int
    awaiting_handoff: bool
    decoding: bool = False
    arriving: bool = False
    predicted_remaining: float = 0.0

    def __post_init__(self) -> None:
        require_between("predicted_remaining", self.predicted_remaining, 0.0, _MOST)


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that a worker has finished."""

    key: StreamKey
    unit: int
    num_prompt_tokens: int
    num_output_tokens: int
    finish_reason: FinishReason
    served: float = 0.0
    """Seconds of the passes that it took part in, on all its workers."""
    names: tuple[BlockHash, ...] = ()
    """Names of the waypoints behind its prompt whose KV stays cached (``headway.blocks``)."""

    def __post_init__(self) -> None:
        require_between("served", self.served, 0.0, _MOST)


@dataclass(frozen=True, slots=True)
class Admission:
    """The first admission of a request: tokens of its beginning that needed no computing.

    ``num_host_tokens`` of its ``num_cached_tokens`` came from host memory.
    """

    key: StreamKey
    num_cached_tokens: int
    num_host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CachedPrefixes:
    """Beginnings that a DP unit has cached, least recently used first.

    ``names`` of waypoints, and the ``numbers`` of these (``headway.blocks``). ``in_host``: they
    are in host memory.
    """

    unit: int
    names: tuple[BlockHash, ...]
    numbers: Sequence[int]
    in_host: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Costs that a worker has measured while it serves: coefficients of its pass time, seconds.

    ``base`` of a pass, per prompt token, per token × token of context, per decoding request and per
    KV token. ``swap_per_token``: to host memory or back. ``link_per_byte``: of KV that it sends to
    another worker. 0 where nothing is known. Values that are no times are refused (HeadwayError).
    """

    base: float = 0.0
    per_prefill_token: float = 0.0
    per_prefill_context: float = 0.0
    per_request: float = 0.0
    per_kv_token: float = 0.0
    swap_per_token: float = 0.0
    link_per_byte: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            require_between(each.name, getattr(self, each.name), 0.0, MAX_COST)


@dataclass(frozen=True, slots=True)
class UsedConstant:
    """A number by which a worker's order decides: ``Constant`` with its source in a word."""

    name: str
    value: float
    """Seconds or a share, 0 or more; infinite for what never comes."""
    source: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker's description and requests; its first message to a scheduler."""

    info: WorkerInfo
    loads: tuple[UnitLoad, ...]
    held: tuple[HeldRequest, ...] = ()
    draining: bool = False
    costs: MeasuredCosts | None = None
    prefixes: tuple[CachedPrefixes, ...] = ()
    constants: tuple[UsedConstant, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The acknowledgement of a dispatch; its requests are queued on the device."""

    dispatch_id: int


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Requests that this worker no longer holds, and of which nothing was computed."""

    keys: tuple[StreamKey, ...]


@dataclass(frozen=True, slots=True)
class PassWork:
    """Passes added up: seconds, tokens, tokens × tokens, requests, tokens (``pass_time.Share``)."""

    num_passes: int = 0
    seconds: float = 0.0
    prefill_tokens: int = 0
    prefill_context: int = 0
    batch: int = 0
    kv_tokens: int = 0

    def plus(self, other: PassWork) -> PassWork:
        """Return the sum of both."""
        return PassWork(
            self.num_passes + other.num_passes,
            self.seconds + other.seconds,
            self.prefill_tokens + other.prefill_tokens,
            self.prefill_context + other.prefill_context,
            self.batch + other.batch,
            self.kv_tokens + other.kv_tokens,
        )


@dataclass(frozen=True, slots=True)
class EndForward:
    """The end of one forward pass; ``pass_time`` in seconds, 0 for news without a pass.

    ``prefilled``: requests that await a handoff; on a draining worker, those that can move from now
    on; and requests that the last snapshot listed as arriving and that run here now.
    """

    pass_id: int
    pass_time: float
    dispatch_ids: tuple[int, ...]
    loads: tuple[UnitLoad, ...]
    prefilled: tuple[HeldRequest, ...] = ()
    finished: tuple[FinishedRequest, ...] = ()
    answering: tuple[HeldRequest, ...] = ()
    """Running requests whose reasoning has just ended."""
    work: tuple[PassWork, ...] = ()
    """Passes since the last report, if asked for: those with prompt tokens, and those without."""
    costs: MeasuredCosts | None = None
    """Costs as measured by now; None if they have not changed."""
    admitted: tuple[Admission, ...] = ()
    """Requests admitted since the last report, where prefixes are cached."""
    constants: tuple[UsedConstant, ...] = ()
    """Constants by which its order decides; none if none has drifted since the last report."""
    begun: tuple[StreamKey, ...] = ()
    """Requests whose prompt is computed, and that decode here from now on."""


@dataclass(frozen=True, slots=True)
class RunningRequests:
    """Requests that decode on one DP unit, in parallel arrays: STAR's report (Algorithm 1).

    Preempted ones with KV in host memory are among them, for they can move.

    ``num_tokens``: N(r). ``remaining``: N̂(r), NaN if unknown. ``future``: the unit's simulated
    load in tokens, one entry per step of the horizon. ``lost_tokens``: of preempted requests that
    are to be computed again; they are part of every load and cannot move.
    """

    unit: int
    keys: tuple[StreamKey, ...]
    num_tokens: Sequence[int]
    remaining: Sequence[float]
    future: Sequence[float]
    lost_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """All units' running requests at one instant.

    ``step_time``: seconds of the last decode step (STAR's T_exec), 0 before any. A value out of
    range is refused (HeadwayError).
    """

    units: tuple[RunningRequests, ...]
    step_time: float = 0.0

    def __post_init__(self) -> None:
        require_between("step_time", self.step_time, 0, 1e6)


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """The result of a handoff; not ``retriable`` if the source no longer holds the request.

    ``fencing_token`` is that of the newest order for this move; of one that has succeeded, that by
    which it began. 0 if its source has forgotten it.
    """

    key: StreamKey
    target_worker_id: str
    target_unit: int
    ok: bool
    retriable: bool = True
    message: str = ""
    fencing_token: int = 0


Order = Dispatch | Handoff | CancelHandoff | CancelStream | GiveBack | Drain | Tuned | WantedReports
"""A leader's message to a worker, after its hello."""
ToWorker = ControlHello | Order
FromWorker = Snapshot | Accepted | EndForward | HandoffResult | HandedBack | LoadReport

# --- worker to worker -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvHeader:
    """A description of the KV bytes that follow.

    ``shape`` is (layers, 2, tokens padded to whole blocks, KV heads, head size). With ``more`` the
    request still runs, and parts follow.
    """

    request: Request
    unit: int
    num_computed_tokens: int
    num_bytes: int
    block_size: int
    dtype: str
    shape: tuple[int, ...]
    more: bool = False
    fencing_token: int = 0
    """The token of the leader that ordered the handoff."""
    layout: str = TOKEN_LAYOUT
    """Layout of the bytes; equal shapes do not make equal layouts."""


@dataclass(frozen=True, slots=True)
class KvPart:
    """KV of a request that has run on since the header or the previous part; its bytes follow.

    It covers tokens ``first_token … num_computed_tokens - 1``; ``output_token_ids`` have been drawn
    since. With ``more`` the request still runs.
    """

    first_token: int
    num_computed_tokens: int
    output_token_ids: tuple[int, ...]
    shape: tuple[int, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class KvSource:
    """Blocks in the sender's memory, for the target to read by NIXL; see ``KvMemory``.

    ``notice`` goes to the sender with the end of the read. ``agent``: NIXL's description of the
    sender's process and of all its registered memory.
    """

    agent: bytes
    notice: bytes
    on_gpu: bool
    device: int
    base: int
    plane_stride: int
    block_stride: int
    block_bytes: int
    num_planes: int
    blocks: tuple[int, ...]


# --- worker and gateway ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """A request that ended without a token.

    ``code``: INVALID_ARGUMENT if no attempt can succeed, UNAVAILABLE if another one may and the
    request is not at fault, else INTERNAL.
    """

    stream_id: int
    finish_reason: FinishReason
    message: str
    code: Code = Code.INTERNAL


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of one forward pass for one gateway: parallel arrays, one entry a token.

    ``finish_reasons`` has None if the request continues. ``logprobs``, ``before`` and
    ``num_cached`` are keyed by entry. ``before``: tokens right before the entry's, which have no
    entry of their own. ``num_cached``: cached tokens of the prompt, with a request's first token.
    ``levels_spent``: MemGuard's levels that it has spent, where there are any. ``marks``: what has
    happened to requests since their last tokens.
    """

    worker_id: str
    stream_ids: Sequence[int]
    indices: Sequence[int]
    token_ids: Sequence[int]
    finish_reasons: Sequence[FinishReason | None]
    logprobs: Mapping[int, TokenLogprobs]
    failures: Sequence[StreamFailure] = ()
    before: Mapping[int, Sequence[int]] = field(default_factory=dict)
    num_cached: Mapping[int, int] = field(default_factory=dict)
    levels_spent: Mapping[int, int] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
