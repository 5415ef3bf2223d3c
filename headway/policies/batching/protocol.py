"""The input and the output of a batching policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from headway.request import Phase, StreamKey


class Candidate(Protocol):
    """A request of a DP unit, as a batching policy sees it. Instants are s since the epoch."""

    @property
    def key(self) -> StreamKey:
        """Breaks every tie."""

    @property
    def tenant(self) -> str:
        """Whom it counts for."""

    @property
    def arrival_at(self) -> float:
        """When the client's request reached the gateway."""

    @property
    def due_at(self) -> float:
        """When its class has its first token due; its arrival where it has no class."""

    @property
    def answer_due_at(self) -> float:
        """When its class has its first answering token due; infinite without such a promise."""

    @property
    def yields(self) -> bool:
        """True if its class takes what others leave, until it is due."""

    @property
    def decoding(self) -> bool:
        """True if it needs one token a pass, False while it still has tokens to compute."""

    @property
    def running(self) -> bool:
        """True if it holds KV blocks."""

    @property
    def phase(self) -> Phase:
        """The phase that its reader waits for; a recompute does not change it."""

    @property
    def num_prompt_tokens(self) -> int:
        """s_pre."""

    @property
    def num_cached_tokens(self) -> int:
        """h: prompt tokens that this pool need not compute (cached, or prefilled elsewhere)."""

    @property
    def num_hit_tokens(self) -> int:
        """Prompt tokens whose KV its unit had cached when it came or was admitted."""

    @property
    def num_output_tokens(self) -> int:
        """Generated so far, by all attempts together."""

    @property
    def attained_tokens(self) -> int:
        """w: tokens processed for it, cached ones apart; a recompute does not count again."""

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV is in its blocks."""

    @property
    def num_phase_tokens(self) -> int:
        """Tokens since its phase began: computed ones in prefill, else generated ones."""

    @property
    def predicted_remaining(self) -> float | None:
        """Output tokens still to come, as predicted; None if nothing is known."""

    @property
    def true_remaining(self) -> int | None:
        """Output tokens still to come in truth; None outside the simulator."""

    @property
    def is_read(self) -> bool:
        """True if its client reads the answer as it comes; else it has no reader's clock."""

    @property
    def reasons(self) -> bool:
        """True if its answer begins with reasoning, as far as its client says."""

    @property
    def opens_answer(self) -> bool:
        """True if its next token is the first that its reader sees."""

    @property
    def in_hand_until(self) -> float:
        """When its reader runs out of tokens in hand, -inf if it has none in hand or no reader.

        The slack of an answering request at ``now`` is ``in_hand_until - now``.
        """

    @property
    def served(self) -> float:
        """Seconds of the passes that it took part in, on all its workers."""

    @property
    def num_preemptions(self) -> int:
        """The number of times it was preempted, voluntarily or by need."""


C = TypeVar("C", bound=Candidate)


class Ranked(NamedTuple):
    """A candidate's place in the order, least first, and how long it keeps it.

    ``rank``: numbers, never NaN, as many for every candidate of a policy; ties end with the key.
    It holds while ``attained_tokens < until_tokens`` and ``now < until_at``, and until the
    candidate's phase, prediction, or its being ``running`` or ``decoding`` changes.
    """

    rank: tuple[float, ...]
    until_tokens: float = inf
    until_at: float = inf


class Batching(ABC):
    """Ranks the requests of the DP units of one worker.

    The worker's core serves them in that order while the chunk's tokens, its places and the KV
    blocks last, and takes blocks back from the end of it. Policies derive from this class:
    what they do not say of themselves is as it stands here.
    """

    preempts: bool = False
    """True if a waiting request may take the place of running ones that rank behind it."""

    improves: bool = False
    """True if a running request's rank only gets better as it is served."""

    reads_lengths: bool = False
    """True if its ranks read remaining lengths; else none are predicted for it."""

    reads_classes: ClassVar[bool] = False
    """True if its ranks read what a request's class promises."""

    keeps_pace: float | None = None
    """Seconds in which a reader reads a token, if a pass takes no more prompt tokens than let
    readers' next tokens come in time: within their classes' ``tpot``, and without one at that pace.
    """

    yields_to_readers: ClassVar[bool] = False
    """True if the scheduler counts as room for a reader's first token what yields to it here. So
    it is sent to a full unit, and the order decides there. Ranks must read it without a trace."""

    fits_gamma: ClassVar[bool] = False
    """True if γ is fitted to end-to-end latencies, as its parameters' ``fit()`` says (γ-Ada)."""

    fresh_tokens: int = 500
    """Answering tokens within which an answer is fresh: the first quantum (PASCAL's a_i)."""

    @property
    def epoch(self) -> int:
        """Changes when all ranks must be drawn anew."""
        return 0

    @property
    def reserve(self) -> float:
        """Share of a unit's blocks kept free by preempting requests that ``gives_way`` names."""
        return 0.0

    def gives_way(self, candidate: Candidate) -> bool:
        """Return whether it may lose its blocks ahead of need."""
        return False

    def is_spared(self, candidate: Candidate) -> bool:
        """Return whether all others lose their blocks to growth before it does."""
        return False

    @abstractmethod
    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Return its rank, whatever order candidates are asked about in."""

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Return whether a running request may yield to a waiting one that ranks before it."""
        return True

    def takes_back(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Return whether one that lost its blocks may have them from a running one after all."""
        return False

    def levels_spent(self, key: StreamKey) -> int:
        """Return the levels whose credit a request has spent; it takes them along when it moves."""
        return 0

    def recall(self, key: StreamKey, levels_spent: int) -> None:
        """Note the credits that an arriving request has spent on another worker."""

    def preempted(self, victim: Candidate, *, voluntary: bool) -> None:
        """Note a preemption, for a better request (``voluntary``) or by another's KV growth."""

    def passed(self, pass_time: float, num_tokens: int, num_steps: int = 1) -> None:
        """Steps of ``pass_time`` seconds have ended, each over ``num_tokens`` tokens."""

    def completed(self, candidate: Candidate, *, now: float) -> None:
        """Note that its last token has been drawn."""

    def tune(self, gamma: float) -> None:
        """Take the pool's γ, fitted where end-to-end latencies are known, 1/s."""

    def forget(self, key: StreamKey) -> None:
        """Forget a request that has left this worker."""
