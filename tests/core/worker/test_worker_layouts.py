"""The worker's core: KV of a foreign layout is refused, and the engine hears who has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import AcceptKv, KvArrived, KvOffered, RefuseKv
from headway.errors import Code
from headway.forward_pass import ForwardPass
from headway.messages import CancelStream, KvHeader
from headway.policies.batching.sarathi import Sarathi
from headway.request import StreamKey
from tests.fakes.paged import EOS, WorkerHarness
from tests.fakes.worker_core import dispatch, make_request, make_worker


def answer(own: str, offered: str) -> AcceptKv | RefuseKv:
    """What a worker of one layout says to KV of another."""
    info = replace(make_worker().core.info, kv_layout=own)
    worker = WorkerHarness(WorkerCore(info, [EOS], Sarathi(), WorkerSettings()), 4)
    header = KvHeader(make_request(1), 0, 5, 8, 4, "int", (1, 2, 8, 1, 1), layout=offered)
    (said,) = [a for a in worker.post(KvOffered(header)) if isinstance(a, AcceptKv | RefuseKv)]
    return said


def test_kv_of_its_own_layout_is_taken() -> None:
    assert isinstance(answer("swizzled", "swizzled"), AcceptKv)


@pytest.mark.parametrize(
    ("own", "offered"), [("tokens", "swizzled"), ("swizzled", "tokens"), ("", "tokens"), ("", "")]
)
def test_kv_of_another_layout_is_refused_by_name(own: str, offered: str) -> None:
    said = answer(own, offered)
    assert isinstance(said, RefuseKv)
    assert said.error.code is Code.INVALID_ARGUMENT
    assert repr(offered) in said.error.message
    assert (repr(own) if own else "takes no KV") in said.error.message


def ended(worker: WorkerHarness) -> list[tuple[int, ...]]:
    """The requests that each pass has been told of, by stream id."""
    passes = [a for a in worker.log if isinstance(a, ForwardPass)]
    return [tuple(key.stream_id for key in each.ended) for each in passes]


def test_a_pass_tells_the_engine_once_who_was_released_before_it() -> None:
    worker = make_worker()
    worker.post(dispatch(make_request(1, max_tokens=2), make_request(2, max_tokens=4)))
    worker.run_all()
    assert ended(worker) == [(), (), (1,), ()]
    worker.post(dispatch(make_request(3, max_tokens=1), dispatch_id=2))
    worker.run_all()
    assert ended(worker)[4:] == [(2,)]


def test_it_also_tells_of_a_request_that_was_cancelled() -> None:
    worker = make_worker()
    worker.post(dispatch(make_request(1), make_request(2)))
    worker.post(CancelStream(StreamKey("g", 2)))
    worker.run_pass()
    worker.run_pass()
    assert (2,) in ended(worker)


def test_a_request_that_arrives_is_part_of_the_load_and_shown_apart() -> None:
    worker = make_worker()
    layout = worker.core.info.kv_layout
    header = KvHeader(make_request(1), 0, 5, 8, 4, "int", (1, 2, 8, 1, 1), layout=layout)
    (said,) = [a for a in worker.post(KvOffered(header)) if isinstance(a, AcceptKv)]
    (load,) = worker.core.loads
    num_tokens = header.request.num_tokens
    assert (load.num_running, load.num_arriving) == (1, 1)
    assert (load.kv_tokens, load.arriving_tokens) == (num_tokens, num_tokens)
    worker.post(KvArrived(said.key))
    (load,) = worker.core.loads
    assert (load.num_running, load.num_arriving, load.arriving_tokens) == (1, 0, 0)
