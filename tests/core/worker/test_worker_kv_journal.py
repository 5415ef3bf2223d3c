"""What a worker tells routers of its prefix cache is what that cache has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from headway.blocks import BlockHash, PrefixNamer, block_names
from headway.cluster import Adapter
from headway.core.worker.events import BlocksCached, TellKv
from headway.messages import CancelStream
from headway.request import StreamKey
from tests.fakes.worker_core import dispatch, make_request, make_worker

_SIZE = 4


def _told(log: Iterable[object]) -> list[dict[BlockHash, tuple[int, ...]]]:
    """Return the tokens up to the end of each cached block by its name, as told, by unit."""
    units: list[dict[BlockHash, tuple[int, ...]]] = [{}, {}]
    for told in (action for action in log if isinstance(action, TellKv)):
        blocks = units[told.unit]
        for change in told.changes:
            if not isinstance(change, BlocksCached):
                for name in change.names:
                    del blocks[name]
                continue
            before = () if change.parent is None else blocks[change.parent]
            for n, name in enumerate(change.names):
                before += change.token_ids[n * _SIZE : (n + 1) * _SIZE]
                assert name == block_names(before, _SIZE, PrefixNamer(change.salt or ""))[-1]
                assert name not in blocks
                blocks[name] = before
    return units


@pytest.mark.parametrize("seed", range(5))
def test_whoever_follows_the_news_knows_what_is_cached(seed: int) -> None:
    draw = Random(seed)
    worker = make_worker(prefix_caching=True, tells_kv=True, units=2, blocks=16)
    for number in range(1, 40):
        shared = draw.randrange(3) * 100
        prompt = tuple(range(shared, shared + draw.randrange(1, 30)))
        request = make_request(number, max_tokens=draw.randrange(1, 9))
        request = replace(request, prompt_token_ids=prompt)
        worker.post(dispatch(request, dispatch_id=number, unit=number % 2))
        for _ in range(draw.randrange(4)):
            worker.run_pass()
        if not draw.randrange(6):
            worker.post(CancelStream(StreamKey("g", number)))
    worker.run_all()
    for unit, blocks in zip(worker.core.units, _told(worker.log), strict=True):
        assert {name: len(tokens) for name, tokens in blocks.items()} == dict(unit.pool.cached())
        assert blocks


def test_prompts_with_a_salt_and_an_adapter_are_told_with_them() -> None:
    worker = make_worker(prefix_caching=True, tells_kv=True, adapters=(Adapter("sql", "1"),))
    worker.post(dispatch(replace(make_request(1, prompt=9), cache_salt="s", adapter="sql")))
    worker.run_all()
    told = next(action for action in worker.log if isinstance(action, TellKv))
    assert isinstance(told.changes[0], BlocksCached)
    assert (told.changes[0].salt, told.changes[0].adapter) == ("s", "sql")
    named = block_names(range(2, 6), _SIZE, PrefixNamer("s", "sql"))
    assert told.changes[0].names[0] == named[0]


def test_nothing_is_told_unless_it_is_asked_for() -> None:
    worker = make_worker(prefix_caching=True)
    worker.post(dispatch(make_request(1, prompt=9)))
    worker.run_all()
    assert not [action for action in worker.log if isinstance(action, TellKv)]
