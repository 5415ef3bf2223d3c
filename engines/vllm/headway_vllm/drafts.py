"""Speculation: the drafts of vLLM's proposer, checked by drawing.

Headway's draw at a position is a function of the logits, the seed, the position and the output so
far. So a draft is right if the draw at its position is the draft. What is drawn is then what would
have been drawn without drafts: at any temperature, with penalties and with a grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from headway.errors import Code, HeadwayError

Check = Callable[[torch.Tensor, Sequence[Sequence[int]]], Sequence[Sequence[int]]]
"""From logits (rows, vocabulary) and the drafts of each request to the tokens of each.

A request has a row for each of its drafts and one more, in this order."""

NO_TOKEN = -1
"""vLLM's word for a position at which nothing was drawn."""


def check_with(runner: Any, check: Check) -> None:
    """Let ``check`` choose the tokens of passes with drafts.

    Raises HeadwayError (FAILED_PRECONDITION) for a runner that is not vLLM's model runner V1.
    """
    if not hasattr(runner, "rejection_sampler") or hasattr(runner, "req_states"):
        message = "speculative_config: headway-vllm checks drafts in vLLM's model runner V1 alone"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine_args")
    runner.rejection_sampler = _Checker(check)


def split(tokens: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """Return the tokens in parts of so many."""
    ends = list(accumulate(counts))
    return [list(tokens[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def draw_along(
    drafts: Sequence[Sequence[int]],
    going: Sequence[int],
    draw: Callable[[Sequence[int], Sequence[int]], Sequence[int]],
) -> None:
    """Draw for each request of ``going``, and at its next row as long as the draw is the draft.

    ``draw``: takes requests and the row of each, and returns the tokens.
    """
    ends = accumulate(len(guesses) + 1 for guesses in drafts)
    firsts = [end - len(guesses) - 1 for end, guesses in zip(ends, drafts, strict=True)]
    place = 0
    while going:
        tokens = draw(going, [firsts[n] + place for n in going])
        drawn = zip(going, tokens, strict=True)
        going = [n for n, token in drawn if [token] == list(drafts[n][place : place + 1])]
        place += 1


class _Checker(torch.nn.Module):
    """A module in the place of vLLM's rejection sampler."""

    def __init__(self, check: Check) -> None:
        super().__init__()
        self._check = check

    def forward(self, metadata: Any, draft_probs: Any, logits: torch.Tensor, _: Any) -> Any:
        from vllm.v1.outputs import SamplerOutput

        drafts = split(metadata.draft_token_ids.tolist(), metadata.num_draft_tokens)
        drawn = self._check(logits, drafts)
        width = metadata.max_spec_len + 1
        rows = [[*tokens, *[NO_TOKEN] * (width - len(tokens))] for tokens in drawn]
        return SamplerOutput(torch.tensor(rows, dtype=torch.int32, device=logits.device), None)
