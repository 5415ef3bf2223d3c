"""The greatest logit of a row without multiplying by all of a bfloat16 head.

With few rows a product takes as long as reading its weights. So a copy of the head in 8 bits, half
as long, says which tokens can have the greatest logit at all, and only theirs are computed from the
bfloat16 weights. With codes ``ŵ`` of ``w`` and ``x̂`` of ``x`` the error of ``ŵ·x̂`` is at most
``‖w − ŵ‖·‖x‖ + ‖ŵ‖·‖x − x̂‖`` (Cauchy and Schwarz): whose upper bound lies below the best lower
bound is not the greatest.
"""

from __future__ import annotations

import torch

MOST_ROWS = 8
"""Measured: with more rows reading the weights is no longer what a product waits for."""

MIN_TOKENS = 2**15
"""A smaller vocabulary's head is a small share of what a pass reads."""

_PART = 128
_FINE = 254.0  # the second code of a state is so much finer than the first
_BF16_ROUNDING = 2.0**-8
_FLOAT_ROUNDING = 1e-5
_MOST_CANDIDATES = 4096


class ScreenedHead:
    """``weight`` is (vocabulary, hidden size), bfloat16; it is kept, and read where it matters."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        num_tokens, size = weight.shape
        self._num_parts = num_tokens // _PART
        self._scale = torch.empty(num_tokens)
        errors, norms = torch.empty(num_tokens), torch.empty(num_tokens)
        codes = torch.empty((num_tokens, size), dtype=torch.int8)
        for start in range(0, num_tokens, _PART * 64):  # a part at a time is there in float32
            part = slice(start, start + _PART * 64)
            rows = weight[part].float()
            scale = (rows.abs().amax(1) / 127).clamp_(min=1e-30)
            code = torch.round(rows / scale[:, None])
            read = code * scale[:, None]
            self._scale[part], codes[part] = scale, code.to(torch.int8)
            errors[part], norms[part] = (rows - read).norm(dim=1), read.norm(dim=1)
        self._zero = torch.zeros(1, dtype=torch.int64)
        self._codes = torch.ops.onednn.qlinear_prepack(codes, [2 * MOST_ROWS, size])
        self._norm = norms.view(-1, _PART).amax(1)
        self._error = errors.view(-1, _PART).amax(1) + _FLOAT_ROUNDING * self._norm

    @staticmethod
    def serves(weight: torch.Tensor) -> bool:
        """Whether a head is one that this is for: large, bfloat16, finite, on a CPU that can."""
        if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16:
            return False
        num_tokens = weight.shape[0]
        if num_tokens < MIN_TOKENS or num_tokens % _PART or not torch._C._has_mkldnn:
            return False
        return torch.cpu._is_vnni_supported() and bool(weight.isfinite().all())

    def greatest(self, rows: torch.Tensor) -> torch.Tensor | None:
        """The token of each row's greatest logit, the first of equals (rows,), for ``rows`` (rows,
        hidden size); None where only the whole product can tell.

        Logits are compared as bfloat16, as the whole product gives them.
        """
        if len(rows) > MOST_ROWS or not bool(rows.isfinite().all()):
            return None
        states = rows.float()
        logits, bounds = self._bounded(states)
        row, token = self._candidates(logits, bounds)
        if len(token) > _MOST_CANDIDATES:
            return None
        values = (self._weight[token].float() * states[row]).sum(1).bfloat16()
        best = values.new_full((len(rows),), float("-inf"))
        best = best.scatter_reduce(0, row, values, "amax")
        is_best = values == best[row]
        none = token.new_full((len(rows),), len(self._weight))
        return none.scatter_reduce(0, row[is_best], token[is_best], "amin")

    def _bounded(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the codes (rows, parts, 128), and how far off they may be (rows, parts).

        Both in units of the row's coarse step. A state has two codes, so that a few great entries
        do not blur the others.
        """
        step = (states.abs().amax(1, keepdim=True) / 127).clamp_(min=1e-30)
        coarse = torch.round(states / step)
        rest = torch.addcmul(states, coarse, step, value=-1)
        fine = torch.round(rest * (_FINE / step)).clamp_(-127, 127)
        rest = torch.addcmul(rest, fine, step, value=-1 / _FINE)
        codes = torch.cat([coarse, fine]).to(torch.int8)
        products = torch.ops.onednn.qlinear_pointwise(
            *(codes, 1.0, 0, self._codes, self._scale, self._zero, None, 1.0, 0),
            *(torch.float32, "none", [], ""),
        )
        count = len(states)
        logits = torch.add(products[:count], products[count:], alpha=1 / _FINE)
        errors = torch.outer(states.norm(dim=1), self._error)
        errors += torch.outer(rest.norm(dim=1), self._norm)
        return logits.view(count, self._num_parts, _PART), errors / step

    def _candidates(
        self, logits: torch.Tensor, bounds: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and tokens of whom the bounds leave open that they are the greatest."""
        best = logits.amax(-1)
        rounding = _BF16_ROUNDING * best.amax(1).abs()
        least = (best - bounds).amax(1) - rounding
        row, part = (best + bounds >= least[:, None]).nonzero(as_tuple=True)
        reach = logits[row, part] + bounds[row, part][:, None]
        place, offset = (reach >= least[row][:, None]).nonzero(as_tuple=True)
        return row[place], part[place] * _PART + offset
