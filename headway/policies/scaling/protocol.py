"""The input and the output of a scaling policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headway.cost.costs import Constant
from headway.messages import PassWork


@dataclass(frozen=True, slots=True)
class Rates:
    """Traffic of all gateways, per second; None stands for figures that are not known.

    ``bucket_tokens_per_s``: input and predicted output tokens of what arrives, by bucket (nine);
    empty where gateways do not tell it. ``burst_tokens_per_s``: input tokens that are labelled as
    burst; None where nobody labels them. ``inter_token_limit`` and ``first_token_limit``: the
    strictest promises of the classes that arrive, between tokens and until the first, s; None
    where none is made.
    """

    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    bucket_tokens_per_s: Sequence[float] = ()
    burst_tokens_per_s: float | None = None
    inter_token_limit: float | None = None
    first_token_limit: float | None = None


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The instances of one role at one instant.

    ``num_starting``: ordered and not yet serving. ``num_requests``: waiting for this pool or in
    it. ``backlog_tokens``: waiting for this pool and not begun. ``busy``: share of the time its
    devices compute; ``memory``: share of its KV memory in use; both 0 to 1.
    """

    num_ready: int
    num_starting: int = 0
    num_requests: int = 0
    backlog_tokens: int = 0
    busy: float = 0.0
    memory: float = 0.0

    @property
    def num_instances(self) -> int:
        """Instances that serve or will."""
        return self.num_ready + self.num_starting


EMPTY_POOL = PoolLoad(0)


@dataclass(frozen=True, slots=True)
class WorkSample:
    """Passes of one instance, added up, that were all of one ``stage``: prefill or decode."""

    worker_id: str
    stage: str
    work: PassWork


@dataclass(frozen=True, slots=True)
class StartUp:
    """Seconds that the next instance will take from its order to ready, as measured.

    ``num_measured``: the starts that this comes from. ``num_standby``: instances that are loaded
    and warm, and come first.
    """

    seconds: float
    num_measured: int
    num_standby: int = 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """Instances of a model at one instant; ``samples``: their passes since the last time.

    ``network_tokens_per_s``: V_N of a prefiller as moves of KV have measured it; None before any.
    """

    prefill: PoolLoad = EMPTY_POOL
    decode: PoolLoad = EMPTY_POOL
    convertible: PoolLoad = EMPTY_POOL
    unified: PoolLoad = EMPTY_POOL
    samples: Sequence[WorkSample] = ()
    start_up: StartUp | None = None
    network_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Instances wanted by role, and why."""

    num_prefill: int
    num_decode: int
    num_convertible: int
    num_unified: int
    reason: str


class Scaling(ABC):
    """A rule for how many instances of each role there should be."""

    name: str
    """The name in the registry."""

    scales: ClassVar[bool] = True
    """True if the numbers follow the load."""

    converts: ClassVar[bool] = False
    """True if some of its decoders are convertible."""

    unifies: bool = False
    """True if its instances may be unified."""

    loads_live: bool = False
    """True if its instances serve while they start (BlitzScale's live loading)."""

    def constants(self) -> Sequence[Constant]:
        """Return the constants of the deployment that decisions use now."""
        return ()

    @abstractmethod
    def begin(self, fleet: Fleet) -> None:
        """Take in the instances that there are, where they are known, before any decision."""

    @abstractmethod
    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Return the targets now, s. No figure is not zero: hold what is, and say so."""
