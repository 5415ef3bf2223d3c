"""The plan of a forward pass, made by the worker's core and run by its backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.errors import HeadwayError
from headway.request import SamplingParams, StreamKey, TokenLogprobs

PENDING = -1
"""Placeholder for a token still being drawn by the pass before; the backend fills it in."""
PLAIN = 0
"""The token that a simulated model draws where nothing ends."""


class PassItem(NamedTuple):
    """A request's share of a forward pass.

    ``token_ids`` are computed at positions ``start, start + 1, …``. ``block_table`` covers
    positions 0 to ``start + len(token_ids) - 1`` and holds blocks of the backend's one pool. With
    ``sample`` the next token is drawn after the last of them. Drawing reads ``prompt_token_ids``
    and the first ``num_output_tokens`` of ``output_token_ids`` (penalties) and must not change
    them. Tables and outputs may grow at their ends meanwhile.

    An item planned while the pass before was in flight may have ``PENDING`` as its only token. That
    token may then still be missing from the output.
    """

    key: StreamKey
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: bool
    sampling: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    tenant: str = ""
    """Whom the time of its mask counts for."""
    adapter: str = ""
    """The adapter that its tokens are computed with, "" for none."""

    @property
    def num_output_tokens(self) -> int:
        """Output tokens before the one that it draws."""
        return self.start + len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_scored(self) -> int:
        """Tokens of its prompt here whose log probabilities are asked for.

        A request that goes on had them with its first token. Its output is not looked at for
        longer than once: while the next pass is planned, another thread adds ``PENDING`` to it.
        """
        if self.sampling.num_prompt_logprobs is None or self.num_output_tokens > 0:
            return 0
        goes_on = tuple(self.output_token_ids[:1]) not in ((), (PENDING,))
        return 0 if goes_on else len(self.token_ids)


class Swap(NamedTuple):
    """A copy of a request's KV, ``num_tokens`` of it, between ``blocks`` and ``host_blocks``."""

    key: StreamKey
    blocks: tuple[int, ...]
    num_tokens: int
    host_blocks: tuple[int, ...] = ()


SAVED = StreamKey("", 0)
"""The key of copies of cached prefixes, which belong to no request."""


class Leap(NamedTuple):
    """Decode steps in a row, in the simulator: each over the tokens that the one before has drawn.

    There are at most ``num_steps``. The last is the first one in which a request ends or begins to
    answer, or that ends at or after ``until``. If the batch ``goes_on`` from the pass before, all
    its requests are in this one except for those that have ``left``.
    """

    num_steps: int
    until: float = inf
    goes_on: bool = False
    left: Sequence[StreamKey] = ()


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """An execution of the model over one ragged batch, all DP units in lock-step.

    Before it, ``swapped_out`` leave their blocks, which others may be given; then ``swapped_in``
    come back into theirs. ``saved`` are copied to host memory while it runs: their blocks keep what
    they hold until it has ended.

    ``ended``: requests that this worker has released since the pass before; their blocks are free.
    ``hidden``: places in ``items`` whose hidden state is wanted. ``leap``: None for one step. Else
    each request computes one token a step, and ``items`` are those that join the batch.
    """

    pass_id: int
    items: tuple[PassItem, ...]
    leap: Leap | None = None
    swapped_out: tuple[Swap, ...] = ()
    swapped_in: tuple[Swap, ...] = ()
    saved: tuple[Swap, ...] = ()
    hidden: tuple[int, ...] = ()
    ended: tuple[StreamKey, ...] = ()


class Sampled(NamedTuple):
    """A token drawn for one request, with those of earlier steps of the same pass."""

    key: StreamKey
    token_id: int
    logprobs: TokenLogprobs | None = None
    before: Sequence[int] = ()
    problem: HeadwayError | None = None
    """Why no token could be drawn: the request ends, the others of its pass go on."""


def plain(key: StreamKey, num_steps: int) -> Sampled:
    """Return what a request has drawn in a leap of so many steps where nothing ends."""
    return Sampled(key, PLAIN, None, (PLAIN,) * (num_steps - 1))


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """Output of the last layer for each request's last computed token, after the final norm.

    ``values``: (n, d), a row for each of the ``keys``: the inputs of the language model's head.
    """

    keys: tuple[StreamKey, ...]
    values: NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class PassResult:
    """Tokens drawn by a forward pass; ``pass_time``: seconds of one step.

    ``hidden``: the requested states of its last step; None for none. ``swap_time``: seconds of its
    swaps, in parallel with the pass or not; 0 if not measured. After a leap of ``num_steps`` steps
    ``sampled`` lists requests that end or begin to answer; all other tokens are ``PLAIN``.
    ``late``: requests left out, whose masks were not ready; each has computed all but its last
    token. ``pass_time`` is without the wait for masks. ``score_time``: seconds of it in which log
    probabilities of prompts were computed.
    """

    pass_id: int
    pass_time: float
    sampled: tuple[Sampled, ...]
    hidden: HiddenStates | None = None
    swap_time: float = 0.0
    num_steps: int = 1
    late: tuple[StreamKey, ...] = ()
    score_time: float = 0.0
