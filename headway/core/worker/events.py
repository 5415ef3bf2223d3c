"""Events and actions of a worker's core, beyond ``headway.messages``."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.errors import HeadwayError
from headway.forward_pass import ForwardPass, HiddenStates, PassResult
from headway.messages import (
    ChangeRole,
    FromWorker,
    Handoff,
    KvHeader,
    Order,
    TokenBatch,
    WantedReports,
)
from headway.request import Request, StreamKey

# --- events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchedulerConnected:
    """A scheduler leader opened its control stream: it wants a snapshot, and these reports."""

    wants: WantedReports = field(default_factory=WantedReports)
    fencing_token: int = 0


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """A gateway cannot be reached: its requests' tokens are wanted no more."""

    gateway_id: str


@dataclass(frozen=True, slots=True)
class PassFailed:
    """A forward pass failed; ``keys`` are at fault, all of its requests if empty."""

    pass_id: int
    keys: tuple[StreamKey, ...]
    message: str


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """An outgoing KV transfer was acknowledged (``ok``) or failed."""

    key: StreamKey
    target_worker_id: str
    target_unit: int
    ok: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class KvSent:
    """A round of an outgoing transfer has been sent: the sender waits for the next one."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class KvContinued:
    """More of an accepted offer's KV comes, with the tokens drawn since: of so many in all."""

    key: StreamKey
    num_computed_tokens: int
    output_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvOffered:
    """Another worker wants to send a request's KV."""

    header: KvHeader


@dataclass(frozen=True, slots=True)
class KvArrived:
    """All of an accepted offer's KV is in its blocks."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class KvAborted:
    """An accepted offer's KV will not come."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class PassCut:
    """The pass in flight is cut to so many steps: blocks of the others come free."""

    num_steps: int


@dataclass(frozen=True, slots=True)
class PredictorKnown:
    """A predictor that knows the model has come or gone."""

    is_known: bool


@dataclass(frozen=True, slots=True)
class Predicted:
    """Output tokens that remained when requests had so many of them: parallel arrays.

    ``weight``: of these against each request's earlier predictions, over 0 to 1; 1 forgets them.
    """

    keys: tuple[StreamKey, ...]
    num_output_tokens: tuple[int, ...]
    remaining: tuple[float, ...]
    weight: float = 1.0


TransferEvent = Handoff | TransferEnded | KvSent | KvOffered | KvContinued | KvArrived | KvAborted
WorkerEvent = (
    Order
    | ChangeRole
    | PassCut
    | SchedulerConnected
    | GatewayGone
    | PassResult
    | PassFailed
    | TransferEnded
    | KvSent
    | KvOffered
    | KvContinued
    | KvArrived
    | KvAborted
    | PredictorKnown
    | Predicted
)

# --- actions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendTokens:
    """Bring these tokens to a gateway."""

    gateway_id: str
    gateway_address: str
    batch: TokenBatch


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """Stream these blocks' KV, or that in host memory, to another worker.

    With ``more`` the request still runs, and the sender tells when this has been sent (``KvSent``);
    KV before ``first_token`` has been, in the same transfer.
    """

    request: Request
    num_computed_tokens: int
    blocks: tuple[int, ...]
    handoff: Handoff
    host_blocks: tuple[int, ...] = ()
    first_token: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class StopTransfer:
    """Give up a transfer that was to have more; its end is told as any other's."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class AcceptKv:
    """Take the offered KV into these blocks, or those of host memory."""

    key: StreamKey
    blocks: tuple[int, ...]
    host_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AcknowledgeKv:
    """The offered request runs here already: acknowledge, take nothing."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class RefuseKv:
    """Refuse the offered KV."""

    key: StreamKey
    error: HeadwayError


@dataclass(frozen=True, slots=True)
class AskPredictor:
    """Have these scored; ``num_output_tokens``: of each request, when its state was computed.

    ``num_prompt_tokens``: of each request as its client sent it, or none.
    """

    hidden: HiddenStates
    num_output_tokens: tuple[int, ...]
    num_prompt_tokens: tuple[int, ...] = ()


WorkerAction = (
    ForwardPass
    | FromWorker
    | SendTokens
    | StartTransfer
    | StopTransfer
    | AcceptKv
    | AcknowledgeKv
    | RefuseKv
    | AskPredictor
)
