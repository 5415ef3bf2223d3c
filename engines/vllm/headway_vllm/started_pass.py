"""A pass that vLLM has begun: its result is read when it is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from headway.forward_pass import HiddenStates, PassItem, Sampled
from headway.request import StreamKey
from headway_vllm.draws import RowDraws
from headway_vllm.engine_parts import EngineParts
from services.worker.engine.backend import none_drawn
from services.worker.engine.grammar import NO_MASKS, Masks
from services.worker.engine.transfer import sent


@dataclass(slots=True)
class StartedPass:
    """A pass on vLLM's device. What it has drawn may be read again, and by other threads."""

    pass_id: int
    began_at: float
    items: Sequence[PassItem] = ()
    masks: Masks = field(default_factory=lambda: NO_MASKS)
    swap_time: float = 0.0
    least_token: int = 0
    """The least number that may stand for a token: PENDING if vLLM has the tokens itself."""
    _draws: list[tuple[Sequence[StreamKey], RowDraws]] = field(default_factory=list)
    _hidden: tuple[Sequence[StreamKey], torch.Tensor] | None = None

    def drew(self, keys: Sequence[StreamKey], draws: RowDraws) -> None:
        """Note the draws of some rows, of these requests."""
        self._draws.append((keys, draws))

    def keep_hidden(
        self, parts: EngineParts, items: Mapping[str, PassItem], keys: Sequence[StreamKey]
    ) -> None:
        """Keep the hidden states of these requests; ``items`` are those of the pass by name."""
        rows = {items[name].key: n for n, name in enumerate(parts.request_ids)}
        states = parts.last_states
        states = states[sent(torch.tensor([rows[key] for key in keys]), states.device)].float()
        most = torch.finfo(torch.float16).max
        self._hidden = keys, states.clamp(-most, most).to(torch.float16)

    def tokens(self) -> Mapping[StreamKey, int]:
        """Wait for the draws; return the tokens, any where none could be drawn."""
        return {
            keys[row]: max(0, token)
            for keys, draws in self._draws
            for row, (token, _) in draws.read().items()
        }

    def sampled(self) -> tuple[Sampled, ...]:
        """Wait for the draws; return what the pass has drawn, in the order of its items."""
        drawn = {
            keys[row]: sample for keys, draws in self._draws for row, sample in draws.read().items()
        }
        wanted = [(item.key, *drawn[item.key]) for item in self.items if item.sample]
        return tuple(
            Sampled(key, token, logprobs) if token >= 0 else none_drawn(key, token, self.masks)
            for key, token, logprobs in wanted
        )

    def hidden_states(self) -> HiddenStates | None:
        """Wait for the hidden states that were kept."""
        if self._hidden is None:
            return None
        keys, values = self._hidden
        return HiddenStates(tuple(keys), np.ascontiguousarray(values.cpu().numpy()))
