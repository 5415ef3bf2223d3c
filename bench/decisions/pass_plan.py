"""A worker's plan of one forward pass in which every request decodes, for ``bench policies``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from headway.cluster import Role, WorkerInfo
from headway.core.worker.flight import Share
from headway.core.worker.planner import Limits, PassPlanner
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import WorkerState
from headway.forward_pass import Sampled
from headway.policies import registry
from headway.request import Request, SamplingParams

NUM_RUNNING = 256
PROMPT_TOKENS = 1000
BLOCK_SIZE = 16


def planning(scale: float) -> tuple[str, Iterator[Callable[[], object]]]:
    """Plan from the order to the items, with the blocks that requests grow into."""
    num_running = int(NUM_RUNNING * scale)
    num_blocks = num_running * 2 * PROMPT_TOKENS // BLOCK_SIZE
    most = num_running * PROMPT_TOKENS
    info = WorkerInfo("w", "w", Role.UNIFIED, "m", 1, most, BLOCK_SIZE, num_blocks, most, 1)
    state = WorkerState(info, (), WorkerSettings(prefix_caching=True))
    planner = PassPlanner(registry.make("batching", "headway"), Limits(most, 0.1))
    for number in range(num_running):
        state.queue(_request(number), 0)

    def decisions() -> Iterator[Callable[[], object]]:
        items = planner.plan(state.units[0], now=0.0)
        while True:
            _carry_out(state, items)
            items = []
            yield partial(_plan_into, items, planner, state)

    return f"{num_running} running requests", decisions()


def _request(number: int) -> Request:
    prompt = tuple(range(number, number + PROMPT_TOKENS))
    sampling = SamplingParams(max_tokens=PROMPT_TOKENS)
    return Request(str(number), "m", prompt, sampling, float(number), 0, number, "gateway", "g")


def _plan_into(items: list[Share], planner: PassPlanner, state: WorkerState) -> None:
    items += planner.plan(state.units[0], now=0.0)


def _carry_out(state: WorkerState, items: list[Share]) -> None:
    for item, sequence in items:
        sequence.computed(len(item.token_ids))
        state.drew(sequence, Sampled(item.key, 1), now=0.0, step=0.0)
