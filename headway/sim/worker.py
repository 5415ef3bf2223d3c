"""A simulated instance: a worker's core, its device, and its KV on the way to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from headway.blocks import BlockHash
from headway.cluster import TOKEN_LAYOUT, Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import (
    AcceptKv,
    AcknowledgeKv,
    AskPredictor,
    EngineAbort,
    EngineAdd,
    EngineTune,
    KvOffered,
    KvQuestion,
    KvSent,
    PassCut,
    PlanningAction,
    PredictorKnown,
    RefuseKv,
    SendTokens,
    StartTransfer,
    StopTransfer,
    TellKv,
    TellTokens,
    WorkerEvent,
)
from headway.core.worker.planning_engine import PlanningEngineCore
from headway.cost.costs import Costs
from headway.cost.schema import Profile
from headway.errors import invalid
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import ChangeRole, FromWorker, Handoff
from headway.policies.batching import Batching
from headway.policies.estimation import Estimation
from headway.request import Request, StreamKey
from headway.sim.device import Device, Pace, Steps
from headway.sim.leaps import Leaps
from headway.sim.lengths import EOS, TrueLengths
from headway.sim.node import Node
from headway.sim.pass_log import HeardPasses, PassLog
from headway.sim.planning import HEADWAY, NATIVE, PLANNERS, SimPlanner
from headway.sim.predicting import PredictingPace
from headway.sim.prompts import HASHED_TOKENS, prefix_name
from headway.sim.transfers import Links, Transfers

MODEL = "model"


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """A kind of instance: what it serves, and what it costs.

    ``planner``: who plans its passes; an engine that does is ``unified`` and has one DP unit.
    """

    role: Role
    profile: Profile
    max_model_len: int = 1 << 20
    planner: str = HEADWAY

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise invalid("planner", self.planner, f"one of {', '.join(PLANNERS)}")
        if self.planner == HEADWAY:
            return
        if self.role is not Role.UNIFIED:
            limit = f"{HEADWAY} unless the role is unified: other engines send and take no KV"
            raise invalid("planner", self.planner, limit)
        if self.profile.num_units != 1:
            limit = f"{HEADWAY} unless num_units is 1"
            raise invalid("planner", self.planner, limit)

    @property
    def deployed(self) -> Profile:
        """The profile, with the chunk of its role."""
        return self.profile.in_role(self.role)

    @property
    def _num_host_blocks(self) -> int:
        """Engines that plan by themselves keep no KV in host memory."""
        tokens = self.deployed.host_capacity_tokens if self.planner == HEADWAY else 0
        return tokens // self.deployed.block_size

    def info(self, worker_id: str) -> WorkerInfo:
        """Return its description for the scheduler."""
        profile = self.profile
        return WorkerInfo(
            worker_id=worker_id,
            address=worker_id,
            role=self.role,
            model=MODEL,
            num_units=profile.num_units,
            chunk_tokens=profile.chunk_tokens,
            block_size=profile.block_size,
            num_blocks=profile.kv_capacity_tokens // profile.block_size,
            max_model_len=self.max_model_len,
            kv_bytes_per_token=profile.kv_bytes_per_token,
            kv_layout=TOKEN_LAYOUT if self.planner == HEADWAY else "",
            num_host_blocks=self._num_host_blocks,
            prefill_chunk_tokens=profile.prefill_chunk_tokens or 0,
            convertible_chunk_tokens=profile.convertible_chunk_tokens or 0,
        )


class Policies(NamedTuple):
    """Makers of the policies inside an instance; each has its own."""

    batching: Callable[[], Batching]
    estimation: Callable[[], Estimation | None]


class Surroundings(Links, Protocol):
    """The rest of the cluster, as an instance speaks to it."""

    def to_scheduler(self, worker_id: str, message: FromWorker) -> None:
        """Tell the scheduler."""

    def to_gateway(self, send: SendTokens, heard: HeardPasses) -> None:
        """Hand on tokens that the instance has drawn."""


class SimWorker:
    """Performs a worker core's actions on virtual time."""

    def __init__(
        self,
        worker_id: str,
        spec: InstanceSpec,
        policies: Policies,
        settings: WorkerSettings,
        lengths: Mapping[StreamKey, TrueLengths],
        around: Surroundings,
        pace: Pace | None = None,
        prediction_seconds: float = 0.0,
    ) -> None:
        self.worker_id = worker_id
        self.spec = spec
        self.started_at = around.kernel.now
        info, profile = spec.info(worker_id), spec.deployed
        if not settings.host_prefixes:
            info = replace(info, num_host_blocks=0)
        self.num_blocks = info.num_blocks
        costs = Costs.of([(Role.UNIFIED, profile)])  # it may have to compute prompts again
        settings = replace(settings, host_tokens=profile.host_capacity_tokens, costs=costs)
        self._around = around
        self._lengths = lengths
        self._engine = self._planner(info, policies, settings)
        self.core = self._make_core(info, policies, settings)
        self._node: Node[WorkerEvent, PlanningAction] = Node(
            around.kernel, self.core, self._perform
        )
        self._predicting: PredictingPace | None = None
        if prediction_seconds and spec.planner == HEADWAY:  # other engines show no hidden states
            pace = self._predicting = PredictingPace(prediction_seconds, info.num_blocks, pace)
        self.device = Device(
            around.kernel,
            spec.profile.pass_time,
            spec.profile.chunk_tokens,
            info.num_blocks,
            spec.profile.swap_per_token,
            lengths,
            self._pass_ended,
            pace,
        )
        if self._engine is not None:
            self._engine.device = self.device
        self._transfers = Transfers(self, spec.profile, around)
        self._answers: dict[StreamKey, PlanningAction] = {}
        self._unheard: list[Handoff | KvSent] = []
        self._passes = PassLog(around.network.params.costs.token)
        if self._predicting is not None:
            self._node.post(PredictorKnown(True))

    def _make_core(
        self, info: WorkerInfo, policies: Policies, settings: WorkerSettings
    ) -> WorkerCore | PlanningEngineCore:
        """Return the core that a live worker would have."""
        batching, estimation = policies.batching(), policies.estimation()
        if self._engine is not None:
            settings = replace(settings, host_tokens=0)
            return PlanningEngineCore(info, (EOS,), batching, settings, estimation)
        return WorkerCore(
            info,
            (EOS,),
            batching,
            settings,
            lambda key: self._lengths[key].num_output_tokens,
            estimation,
            self._hashes,
            Leaps,
        )

    def _planner(
        self, info: WorkerInfo, policies: Policies, settings: WorkerSettings
    ) -> SimPlanner | None:
        """Return an engine that plans by itself, if the instance has one."""
        if self.spec.planner == HEADWAY:
            return None
        return SimPlanner(
            self._around.kernel,
            info,
            policies.batching(),
            settings,
            self._lengths,
            self._hashes,
            lambda step: self._node.post(step),
            shows_plans=self.spec.planner == NATIVE,
        )

    def _hashes(self, request: Request) -> Sequence[BlockHash]:
        """A trace's blocks are larger than ours: each is as many as fit."""
        traced = self._lengths[request.key].prefix_hashes
        size = min(self.spec.profile.block_size, HASHED_TOKENS)
        ends = range(size, HASHED_TOKENS + 1, size)
        return [prefix_name(block, end) for block in traced for end in ends]

    @property
    def num_preemptions(self) -> int:
        """Number of times that a request lost its blocks here."""
        return self.core.preemptions.num_voluntary + self.core.preemptions.num_forced

    def post(self, event: WorkerEvent) -> None:
        """News from outside: a pass of several steps ends with the one under way.

        An offer of KV reserves blocks and changes no pass, so it need not end one. What has a
        request in the pass leave is heard when the step has ended: only then does the core know
        of all its tokens.
        """
        if isinstance(event, Handoff | KvSent) and self.device.runs(event.key):
            self._unheard.append(event)
        else:
            self._node.post(event)
        if not isinstance(event, KvQuestion):
            self.device.cut()

    def change_role(self, role: Role) -> None:
        """Serve another role from now on."""
        self.spec = replace(self.spec, role=role)
        self.post(ChangeRole(role))

    def tell_tokens(self) -> None:
        """Have all tokens sent that have been drawn; others must not wait for a look."""
        if self._engine is None:  # an engine's tokens wait for nothing
            self._node.post(TellTokens())

    def stop(self) -> None:
        """Stop the machine."""
        self._node.stop()
        if self._engine is not None:
            self._engine.stop()
        self.device.stop()
        self._transfers.abandon()

    def _pass_ended(self, result: PassResult, steps: Steps, num_steps: int) -> None:
        self._passes.add(steps, num_steps)
        if self._engine is not None:
            self._engine.ended(result)
        else:
            self._node.post(result)
        unheard, self._unheard = self._unheard, []
        for event in unheard:
            self._node.post(event)
        if unheard:
            self.device.cut()

    def _perform(self, action: PlanningAction) -> None:
        match action:
            case ForwardPass():
                if self._predicting is not None:
                    self._predicting.note(action)
                self.device.start(action)
            case EngineAdd() | EngineAbort() | EngineTune():
                assert self._engine is not None, "only an engine that plans gets orders"
                self._engine.follow(action)
            case SendTokens():
                self._around.to_gateway(action, self._passes.heard())
            case StartTransfer():
                self._transfers.start(action)
            case StopTransfer(key):
                self._transfers.stop(key)
            case AcceptKv(key) | AcknowledgeKv(key) | RefuseKv(key):
                self._answers[key] = action
            case AskPredictor() | TellKv():
                pass  # simulated instances predict by themselves, and no router stands in front
            case _:
                self._around.to_scheduler(self.worker_id, action)

    # --- KV from another instance -----------------------------------------------------

    def answer(self, question: KvQuestion) -> PlanningAction:
        """Return the core's answer to an offer, or to more of it."""
        key = question.header.request.key if isinstance(question, KvOffered) else question.key
        self.post(question)
        answer = self._answers.pop(key)
        if isinstance(answer, RefuseKv) and (num_steps := self.device.cut()):
            # The pass has reserved blocks for steps to come.
            self._node.post(PassCut(num_steps))
            self.post(question)
            answer = self._answers.pop(key)
        return answer
