"""A check at load: transformers' modules compute over paged KV what they compute without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headway.forward_pass import PassItem
from headway.request import SamplingParams, StreamKey
from services.worker.engine.kv.pool import KvPool, KvShape
from services.worker.engine.layout import LayoutBuilder
from services.worker.engine.model.network_decoder import NetworkDecoder
from services.worker.engine.model.supported import unsupported

_TOKENS = (1, 2, 3, 5, 8, 13)
_TOLERANCE = {torch.float32: 1e-2}
_LOW_PRECISION_TOLERANCE = 0.25  # a router of experts may decide a tie the other way


def own_logits(network: Any) -> torch.Tensor:
    """Return the logits (tokens, vocabulary) of a short prompt by the model's own attention."""
    token_ids = torch.tensor([_TOKENS], device=network.device)
    paged = network.config._attn_implementation
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: torch.Tensor = network(input_ids=token_ids, use_cache=False).logits[0]
    network.set_attn_implementation(paged)
    return logits


def refuse_other_logits(
    expected: torch.Tensor,
    decoder: NetworkDecoder,
    head: Callable[[torch.Tensor], torch.Tensor],
    shape: KvShape,
) -> None:
    """Raise HeadwayError where the same prompt over paged KV gives other logits.

    All tokens but one are a prompt, the last one is decoded: what a model keeps between passes
    beside its keys and values would be missing there.
    """
    pool = KvPool(shape, 1, len(_TOKENS), expected.device)
    layouts = LayoutBuilder(pool, expected.shape[-1], len(_TOKENS))
    parts = []
    with torch.inference_mode():
        for token_ids, start in ((_TOKENS[:-1], 0), (_TOKENS[-1:], len(_TOKENS) - 1)):
            params, key = SamplingParams(), StreamKey("probe", 0)
            layout = layouts.build([PassItem(key, token_ids, start, (0,), False, params, (), ())])
            states = decoder(layout.token_ids, layout.positions, layout.batch)
            parts.append(head(states))
        error = (torch.cat(parts) - expected).norm() / expected.norm()
    if not error <= _TOLERANCE.get(expected.dtype, _LOW_PRECISION_TOLERANCE):
        raise unsupported(f"its logits over paged KV differ by {float(error):.1%} from its own")
