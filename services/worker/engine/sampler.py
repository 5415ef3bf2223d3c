"""From logits to tokens: each draw is a function of the logits, the seed and the position.

The order is vLLM's: penalties, biases and masks, temperature, min-p, top-k, top-p. Probabilities
are float64. A draw is the first token, in the vocabulary's order, whose cumulative probability
exceeds a uniform number. The other requests of a batch change the rounding of float32 logits. Such
a change alters a draw only if the uniform number lies that close to a boundary between two tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import NamedTuple

import torch

from headway.errors import Code, HeadwayError
from headway.forward_pass import PassItem
from headway.request import SamplingParams, TokenLogprobs
from services.worker.engine.constraints import constrain
from services.worker.engine.grammar import NO_MASKS, Masks
from services.worker.engine.masks import Mask
from services.worker.engine.penalties import adjust
from services.worker.engine.transfer import fetched, sent

GREEDY_TEMPERATURE = 1e-5  # below it a division would only overflow
NUCLEUS_GUESS = 1024
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_PART = 128
_MIN_PARTED = 4096
_RANKED_PART = 64
_MIN_RANKED = 8
"""Parts for each rank, from which on it is sooner to look in the best parts alone."""

NOT_FINITE, NONE_ADMITTED = -1, -2
"""Stand for a token where none can be drawn; see ``problem_of``."""

Drawn = tuple[int, TokenLogprobs | None]
Greatest = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def greatest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest of each row (rows, vocabulary) and its token, the first of equals.

    A NaN is the greatest. In a large vocabulary the greatest of each part is found first: on a CPU
    a search for a value alone is several times faster than one for its place.
    """
    num_whole = logits.shape[-1] // _PART * _PART
    if logits.device.type != "cpu" or num_whole < _MIN_PARTED:
        best, tokens = logits.max(-1)
        return best, tokens
    parts = torch.unflatten(logits[:, :num_whole], 1, (-1, _PART))
    part = parts.amax(-1).max(-1).indices
    best, offset = parts[torch.arange(len(logits)), part].max(-1)
    tokens = part * _PART + offset
    if num_whole < logits.shape[-1]:
        last, offset = logits[:, num_whole:].max(-1)
        is_last = (last > best) | last.isnan()
        best = torch.where(is_last, last, best)
        tokens = torch.where(is_last, offset + num_whole, tokens)
    return best, tokens


def best_of(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest values of each row (rows, vocabulary), best first, and their tokens.

    In a large vocabulary on a CPU they are looked for in the parts with the greatest maxima alone.
    """
    size = values.shape[-1]
    count, num_whole = min(count, size), size // _RANKED_PART * _RANKED_PART
    if values.device.type != "cpu" or not 0 < count < num_whole // _RANKED_PART // _MIN_RANKED:
        best = values.topk(count, -1)
        return best.values, best.indices
    parts = torch.unflatten(values[:, :num_whole], 1, (-1, _RANKED_PART))
    chosen = parts.amax(-1).topk(count, -1).indices[:, :, None]
    tokens = (chosen * _RANKED_PART + torch.arange(_RANKED_PART)).flatten(1)
    rest = torch.arange(num_whole, size).expand(len(values), -1)
    tokens = torch.cat((tokens, rest), 1)
    best = values.gather(1, tokens).topk(count, -1)
    return best.values, tokens.gather(1, best.indices)


class Drawing:
    """A draw that the device may still compute; other passes may be queued behind it."""

    def __init__(
        self,
        tokens: torch.Tensor,
        best: torch.Tensor,
        ids: torch.Tensor | None = None,
        logprobs: _Logprobs | None = None,
    ) -> None:
        """``best``: the logits of greedy tokens, where ``ids`` does not say what was drawn."""
        self.tokens = tokens
        """A token of the vocabulary for each row (rows,), any where none can be drawn."""
        self._best = best
        self._ids = ids
        self._logprobs = logprobs

    def fetched(self) -> Drawing:
        """Return the same in the host's memory, once the device has done what is queued."""
        ids = None if self._ids is None else fetched(self._ids)
        logprobs = None if self._logprobs is None else self._logprobs.fetched()
        return Drawing(fetched(self.tokens), fetched(self._best), ids, logprobs)

    def read(self) -> list[Drawn]:
        """Wait for it; return each row's token, or ``problem_of``'s number."""
        if self._ids is None:
            pairs = zip(self._best.tolist(), self.tokens.tolist(), strict=True)
            return [(token if isfinite(value) else NOT_FINITE, None) for value, token in pairs]
        logprobs = {} if self._logprobs is None else self._logprobs.read()
        return [(token, logprobs.get(n)) for n, token in enumerate(self._ids.tolist())]


def draw(
    logits: torch.Tensor,
    items: Sequence[PassItem],
    eos_token_ids: Sequence[int],
    find: Greatest = greatest,
    masks: Masks = NO_MASKS,
) -> list[Drawn]:
    """Draw a token for each row (rows, vocabulary), or say that there is none (``problem_of``).

    ``find`` is ``greatest``, or a kernel that computes the same. ``masks``: what the grammars of
    the items admit.
    """
    return begin_draw(logits, items, eos_token_ids, find, masks).read()


def begin_draw(
    logits: torch.Tensor,
    items: Sequence[PassItem],
    eos_token_ids: Sequence[int],
    find: Greatest = greatest,
    masks: Masks = NO_MASKS,
) -> Drawing:
    """Queue what ``draw`` computes on the logits' device; its result may be read later."""
    best, tokens = find(logits)
    if all(_is_plain(item) for item in items):
        return Drawing(tokens, best)
    sound = finite = best.isfinite()
    logits = logits.float()
    over = frozenset(key for key, mask in masks.items() if mask.is_over)
    adjusted = constrain(adjust(logits, items, eos_token_ids, over), items, masks)
    if adjusted is not logits:
        best, tokens = find(adjusted)
        finite = finite & best.isfinite()
    random = [n for n, item in enumerate(items) if not _is_greedy(item.sampling)]
    if random:
        rows = sent(torch.tensor(random), logits.device)
        chosen = [items[n] for n in random]
        tokens[rows] = _draw_random(adjusted[rows], chosen, finite[rows])
    logprobs = _logprobs(logits, tokens, items)
    ids = tokens.masked_fill(~finite, NONE_ADMITTED).masked_fill(~sound, NOT_FINITE)
    return Drawing(tokens, best, ids, logprobs)


def problem_of(token: int, mask: Mask | None) -> HeadwayError | None:
    """Return why a row has no token, None if it has one. ``mask``: its grammar's."""
    if token >= 0:
        return None
    if mask is not None and mask.problem:
        return HeadwayError(Code.INVALID_ARGUMENT, mask.problem)
    if token == NOT_FINITE:
        return HeadwayError(Code.INTERNAL, "no token can be drawn: its logits are not finite")
    message = (
        "its constraints admit no token: bad words, allowed tokens, least length and form leave "
        "nothing to draw"
    )
    return HeadwayError(Code.INVALID_ARGUMENT, message)


def draw_each(
    logits: torch.Tensor,
    items: Sequence[PassItem],
    eos_token_ids: Sequence[int],
    find: Greatest = greatest,
    masks: Masks = NO_MASKS,
) -> list[Drawn]:
    """Draw as ``draw`` does, but one row after the other: sums do not depend on other rows."""
    if all(_is_plain(item) for item in items):
        return draw(logits, items, eos_token_ids, find, masks)
    each = zip(torch.split(logits, 1), items, strict=True)
    return [draw(row, [item], eos_token_ids, find, masks)[0] for row, item in each]


def _is_plain(item: PassItem) -> bool:
    """Return whether the item's token is the greatest logit, and nothing else is asked."""
    sampling = item.sampling
    return (
        _is_greedy(sampling)
        and sampling.num_logprobs is None
        and not sampling.reads_output
        and item.num_output_tokens >= sampling.min_tokens
    )


def _is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature < GREEDY_TEMPERATURE


def _draw_random(
    logits: torch.Tensor, items: Sequence[PassItem], finite: torch.Tensor
) -> torch.Tensor:
    logits = logits.masked_fill(~finite[:, None], 0.0)  # any valid token will do
    probs = filtered_probs(logits, [item.sampling for item in items])
    uniforms = [uniform(item.sampling.seed, item.num_output_tokens) for item in items]
    return invert(probs, uniforms)


def uniform(seed: int, position: int) -> float:
    """Return entry ``position`` of the stream ``seed``, in [0, 1); SplitMix64 mixes both."""
    return (_mix(_mix(seed + _GOLDEN) + (position + 1) * _GOLDEN) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """Apply SplitMix64's output function (Steele, Lea, Flood 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def invert(probs: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """Return each row's first token at which the cumulative share exceeds the uniform."""
    cumulative = probs.cumsum(-1)
    # A uniform is at most 1 - 2^-53, so the product is below the total however it rounds.
    target = _column(probs, uniforms) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def filtered_probs(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Return the distributions to draw from, float64, not normalised; ties stay together."""
    probs = (logits.double() / _column(logits, [p.temperature for p in params])).softmax(-1)
    if any(p.min_p > 0 for p in params):
        least = probs.amax(-1, keepdim=True) * _column(logits, [p.min_p for p in params])
        probs = probs.masked_fill(probs < least, 0.0)
    if any(0 < p.top_k < logits.shape[-1] for p in params):
        probs = probs.masked_fill(probs < _kth_prob(probs, [p.top_k for p in params]), 0.0)
    if any(p.top_p < 1 for p in params):
        probs = probs.masked_fill(probs < _nucleus_edge(probs, [p.top_p for p in params]), 0.0)
    return probs


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return sent(torch.tensor(values, dtype=torch.float64), like.device)[:, None]


def _kth_prob(probs: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    """Return the k-th greatest probability of each row; 0 where top-k is off."""
    size = probs.shape[-1]
    ranks = [k if 0 < k < size else 0 for k in top_k]
    best = probs.topk(max(ranks), -1).values
    columns = sent(torch.tensor([max(k - 1, 0) for k in ranks]), probs.device)[:, None]
    on = sent(torch.tensor([k > 0 for k in ranks]), probs.device)[:, None]
    return best.gather(-1, columns) * on


def _nucleus_edge(probs: torch.Tensor, top_p: Sequence[float]) -> torch.Tensor:
    """Return the least probability in the smallest set of best tokens that holds ``top_p``."""
    size, wanted = probs.shape[-1], _column(probs, top_p) * probs.sum(-1, keepdim=True)
    best = probs.topk(min(size, NUCLEUS_GUESS), -1).values
    if best.shape[-1] < size and bool((best.sum(-1, keepdim=True) < wanted).any()):
        best = probs.sort(-1, descending=True).values
    before = best.cumsum(-1) - best
    num_kept = (before < wanted).sum(-1, keepdim=True).clamp(min=1)
    off = sent(torch.tensor([p >= 1 for p in top_p]), probs.device)[:, None]
    return best.gather(-1, num_kept - 1).masked_fill(off, 0.0)


class _Logprobs(NamedTuple):
    """Log probabilities on the device: of the tokens of some rows, and the best of each."""

    counts: dict[int, int]
    """Best ones that were asked for, by row."""
    own: torch.Tensor
    best: torch.Tensor
    best_ids: torch.Tensor

    def fetched(self) -> _Logprobs:
        """See ``Drawing.fetched``."""
        return _Logprobs(self.counts, *(fetched(each) for each in self[1:]))

    def read(self) -> dict[int, TokenLogprobs]:
        """Wait for them; return them by row."""
        columns = self.own.tolist(), self.best_ids.tolist(), self.best.tolist()
        table = zip(self.counts.items(), *columns, strict=True)
        return {
            n: TokenLogprobs(logprob, tuple(ids[:count]), tuple(values[:count]))
            for (n, count), logprob, ids, values in table
        }


def _logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, items: Sequence[PassItem]
) -> _Logprobs | None:
    """Return the log probabilities that are asked for, without penalties and temperature."""
    asked = {
        n: item.sampling.num_logprobs
        for n, item in enumerate(items)
        if item.sampling.num_logprobs is not None
    }
    if not asked:
        return None
    rows = sent(torch.tensor(list(asked)), logits.device)
    logprobs = logits[rows].log_softmax(-1)
    own = logprobs.gather(-1, tokens[rows, None])[:, 0]
    return _Logprobs(asked, own, *best_of(logprobs, max(asked.values())))
