"""Events and actions of a worker's core, beyond ``headway.messages``."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.blocks import BlockHash
from headway.engine import EngineStepped
from headway.errors import Code, HeadwayError
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
class LeaderConnected:
    """A scheduler leader's new control stream; it needs a snapshot, and asks for these reports."""

    wants: WantedReports = field(default_factory=WantedReports)
    fencing_token: int = 0


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """A gateway that cannot be reached: its requests' tokens are no longer wanted."""

    gateway_id: str


@dataclass(frozen=True, slots=True)
class PassFailed:
    """A failed forward pass; ``keys`` are at fault, all of its requests if empty."""

    pass_id: int
    keys: tuple[StreamKey, ...]
    message: str
    code: Code = Code.INTERNAL


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """The end of an outgoing KV transfer, acknowledged (``ok``) or failed.

    ``num_bytes`` of KV took ``seconds`` on their way; 0 where nobody measured it.
    """

    key: StreamKey
    target_worker_id: str
    target_unit: int
    ok: bool
    message: str = ""
    num_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KvSent:
    """The end of a round of an outgoing transfer: the sender waits for the next one."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class KvContinued:
    """More of an accepted offer's KV, with the tokens drawn since and the new total."""

    key: StreamKey
    num_computed_tokens: int
    output_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvOffered:
    """Another worker's offer of a request's KV."""

    header: KvHeader


@dataclass(frozen=True, slots=True)
class KvArrived:
    """The arrival of all of an accepted offer's KV in its blocks."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class KvAborted:
    """The loss of an accepted offer's KV."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class PassCut:
    """A cut of the pass in flight to fewer steps, which frees the blocks of the others."""

    num_steps: int


@dataclass(frozen=True, slots=True)
class TellTokens:
    """An order to send all tokens that have been drawn, whoever goes on without a look."""


@dataclass(frozen=True, slots=True)
class PredictorKnown:
    """The arrival or loss of a predictor that knows the model."""

    is_known: bool


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted remaining tokens, and the output tokens when each was asked for: parallel arrays.

    ``weight``: of these against each request's earlier predictions, over 0 to 1; 1 forgets them.
    """

    keys: tuple[StreamKey, ...]
    num_output_tokens: tuple[int, ...]
    remaining: tuple[float, ...]
    weight: float = 1.0


KvQuestion = KvOffered | KvContinued
TransferEvent = TransferEnded | KvSent | KvQuestion | KvArrived | KvAborted
PassEvent = PassResult | PassFailed | PassCut | TellTokens | EngineStepped
PeerEvent = ChangeRole | LeaderConnected | GatewayGone | PredictorKnown | Predicted
WorkerEvent = Order | TransferEvent | PassEvent | PeerEvent

# --- actions --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendTokens:
    """An order to send these tokens to a gateway."""

    gateway_id: str
    gateway_address: str
    batch: TokenBatch


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """An order to stream these blocks' KV, or that in host memory, to another worker.

    With ``more`` the request still runs, and the sender reports when this part has been sent
    (``KvSent``). KV before ``first_token`` was sent earlier in the same transfer.
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
    """An order to abort a transfer; its end is reported like any other's."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class AcceptKv:
    """An order to take the offered KV into these blocks, or into those of host memory."""

    key: StreamKey
    blocks: tuple[int, ...]
    host_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AcknowledgeKv:
    """An acknowledgement without KV: the offered request runs here already."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class RefuseKv:
    """A refusal of the offered KV."""

    key: StreamKey
    error: HeadwayError


@dataclass(frozen=True, slots=True)
class AskPredictor:
    """A question to the predictor; ``num_output_tokens``: each one's at its state's computation.

    ``num_prompt_tokens``: each request's as its client sent it, or empty.
    """

    hidden: HiddenStates
    num_output_tokens: tuple[int, ...]
    num_prompt_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlocksCached:
    """Blocks that the prefix cache has from now on, one behind the other.

    ``parent``: the name of the block before the first, None at the beginning of a prompt.
    ``salt`` and ``adapter``: the prompt's, "" for none.
    """

    names: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    salt: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class BlocksDropped:
    """Blocks that it has no more."""

    names: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class TellKv:
    """Changes of a DP unit's prefix cache on the device, for routers in front (in this order)."""

    unit: int
    block_size: int
    changes: tuple[BlocksCached | BlocksDropped, ...]


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
    | TellKv
)


@dataclass(frozen=True, slots=True)
class EngineAdd:
    """An order to a planning engine to serve a request; ``priority`` in ms, the least first."""

    request: Request
    priority: int


@dataclass(frozen=True, slots=True)
class EngineAbort:
    """An order to a planning engine to stop a request."""

    key: StreamKey


@dataclass(frozen=True, slots=True)
class EngineTune:
    """An order to a planning engine to take UniBoost's new γ."""

    gamma: float


PlanningAction = WorkerAction | EngineAdd | EngineAbort | EngineTune
"""An action of a worker whose engine plans its own passes."""
