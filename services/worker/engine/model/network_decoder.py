"""transformers' own modules over paged KV: for families and weights without a packed decoder.

A model's own code calls :func:`paged_attention` in each layer with the batch's fresh queries, keys
and values; :class:`PagedBatch` travels to it as a keyword argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.modeling_outputs import MoeModelOutputWithPast

from services.worker.engine.attention import PagedBatch, Reads, attend
from services.worker.engine.cpu.linear import Addition
from services.worker.engine.kv.pool import KvPool
from services.worker.engine.model.adapters import AdapterRows, Product
from services.worker.engine.sampler import greatest

ATTENTION_NAME = "headway_paged"


class NetworkDecoder:
    """The layers of a transformers model, operator by operator as its authors wrote them."""

    kernels = "modules"
    is_deterministic = False
    greatest = staticmethod(greatest)
    reads = Reads.SLOTS

    def __init__(self, modules: Any) -> None:
        """Take a model's decoder; its attention implementation is ``ATTENTION_NAME``."""
        self._modules = modules
        self.adapter_rows = AdapterRows()

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """Return hidden states after the final norm (rows, hidden size) of tokens (rows,)."""
        output = self._modules(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            headway_batch=batch,
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def products(self) -> Iterator[tuple[str, Product]]:
        """See ``Adapted``."""
        for name, module in self._modules.named_modules():
            if isinstance(module, torch.nn.Linear):
                yield name, Product(_Hooked(module), 0, module.out_features, module.in_features)

    def prepare(self, pool: KvPool) -> None:
        """Do nothing: there is nothing to do ahead of the first pass."""


class _Hooked:
    """A module of transformers (1, rows, inputs), as an ``Adaptable``."""

    addition: Addition | None = None

    def __init__(self, module: torch.nn.Linear) -> None:
        module.register_forward_hook(self._add)

    def _add(
        self, _: torch.nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        if not self.addition:
            return output
        rows, product = given[0].flatten(0, -2), output.flatten(0, -2)
        return self.addition(rows, product).view_as(output)


class NetworkHead:
    """The head of a transformers model with whatever its authors do to logits, such as scaling."""

    def __init__(self, network: Any) -> None:
        """Take the model without its decoder, which is replaced: it is of no other use then."""
        decoder = network.get_decoder()
        name = next(name for name, module in network.named_modules() if module is decoder)
        network.set_submodule(name, _PassThrough())
        self._network = network

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits (rows, vocabulary) of hidden ``states`` (rows, hidden size)."""
        logits: torch.Tensor = self._network(inputs_embeds=states.unsqueeze(0)).logits[0]
        return logits


@dataclass
class _Passed(MoeModelOutputWithPast):
    cross_attentions: Any = None


class _PassThrough(torch.nn.Module):
    """A decoder that returns its input as hidden states."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _Passed:
        return _Passed(last_hidden_state=inputs_embeds)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    headway_batch: PagedBatch,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attend for transformers' modules: (1, heads, rows, size) to (1, rows, heads, size)."""
    layer = module.layer_idx
    assert isinstance(layer, int), "transformers numbers its attention layers"
    rows = query[0].transpose(0, 1)
    fresh = (key[0].transpose(0, 1), value[0].transpose(0, 1))
    output = attend(layer, rows, *fresh, headway_batch, scaling, softcap)
    return output.view(1, *rows.shape), None


AttentionInterface.register(ATTENTION_NAME, paged_attention)
