"""Settings of the scheduler's core: policies by name, limits and timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from headway.core.defaults import DOUBTFUL, WATERMARK
from headway.cost.costs import Costs
from headway.cost.velocity import TokenLimits
from headway.policies.packing.flow_control import FlowControl

if TYPE_CHECKING:
    from headway.policies.batching.gamma_ada import GammaFit


@dataclass(frozen=True, slots=True)
class Graces:
    """Seconds that the scheduler waits for peers to return or to report."""

    election: float = 1.0  # a new leader dispatches after this, or once all members have reported
    gateway: float = 5.0  # requests of a gateway away for longer are cancelled
    finish: float = DOUBTFUL  # a request's last tokens are at its gateway this long after its end
    memory: float = 5.0  # a persisted request that no peer has confirmed by then is dropped


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """Bounds on handoffs and moves."""

    rest: float = 1.0  # seconds for which a unit that failed a handoff is left out
    num_tried: int = 5  # handoffs of one prefilled request before it is computed again
    per_link: int = 4  # requests that a draining worker sends, or any worker receives, at a time


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Policies by name with their parameters, and limits of the scheduler."""

    dispatch: str = "sbs"
    dispatch_params: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    packing: str = "pbaa"
    packing_params: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    placement: str = "iqr-lex"
    placement_params: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    rescheduling: str = "none"
    rescheduling_params: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    gamma_fit: GammaFit | None = None
    """Parameters of the γ fit (γ-Ada); None if the workers' policy has no γ."""
    costs: Costs = field(default_factory=Costs)
    """Costs of the instances as far as a profile tells them; workers measure the others."""
    limits: TokenLimits = field(default_factory=TokenLimits)
    """Of the dispatch policy; classes of requests that come may promise tighter ones."""
    flow_control: FlowControl = field(default_factory=FlowControl)
    max_waiting: int = 4096
    """Most requests in all windows; further ones are refused."""
    kv_watermark: float = WATERMARK
    """Share of a unit's blocks that a dispatch leaves free unless the unit is empty."""
    graces: Graces = field(default_factory=Graces)
    moves: MoveLimits = field(default_factory=MoveLimits)
    persists: bool = False
    """True if changes are saved for the next leader."""
    prefix_hits: bool = False
    """True if packing reads which units have prompts with equal beginnings; needs real tokens."""
    measures_work: bool = False
    """True if workers report the contents of their passes, for the autoscaler's velocities."""
    num_decisions_kept: int = 1000
    num_keys_remembered: int = 65_536
    """Ended attempts whose repeats are still recognised."""
