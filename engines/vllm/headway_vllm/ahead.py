"""Passes that are queued on vLLM's device before the tokens of the one before are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headway.forward_pass import PENDING, ForwardPass, PassItem, PassResult
from headway_vllm.backend import VllmBackend
from headway_vllm.started_pass import StartedPass


class AheadBackend(VllmBackend):
    """A ``headway.engine.QueueingBackend``: vLLM's model runner V2 keeps drawn tokens.

    A pending token stays pending: V2 takes it from the device, where the pass before has put it.
    Where drawing needs the output's tokens (penalties, grammars), or vLLM does not know the request
    any more, the pass waits for the one before.
    """

    num_queued = 0
    """Passes that have begun without the tokens that they go on from."""

    def launch(self, forward_pass: ForwardPass) -> Callable[[], PassResult]:
        """See ``QueueingBackend``."""
        return partial(self.end, self.begin(forward_pass))

    def _filled_in(
        self, items: Sequence[PassItem], before: StartedPass, current: StartedPass
    ) -> Sequence[PassItem]:
        pending = [item for item in items if item.token_ids and item.token_ids[0] == PENDING]
        if not pending:
            return items
        if any(item.sampling.reads_output or not self._plans.goes_on(item) for item in pending):
            return super()._filled_in(items, before, current)
        current.least_token = PENDING
        self.num_queued += 1
        return items
