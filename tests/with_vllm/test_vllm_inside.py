"""Each name inside vLLM that we lean on is where it was, one test a name."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.inside import NAMES, Name, moved

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name.owner.split('.')[-1]}.{name.name}")
def test_the_name_is_where_it_was(name: Name) -> None:
    assert not moved(name)


def test_what_has_moved_is_said_in_one_line() -> None:
    gone = Name("vllm.v1.core.sched.scheduler:Scheduler", "_no_such_name", "does nothing")
    other = Name("vllm.v1.core.sched.scheduler:Scheduler", "add_request", "adds", ("reqest",))
    nowhere = Name("vllm.v1.no_such_module:Scheduler", "add_request", "adds")
    assert moved(gone).endswith("is gone from vllm.v1.core.sched.scheduler")
    assert moved(other) == "Scheduler.add_request, which adds, no longer takes reqest"
    assert "there is no Scheduler in vllm.v1.no_such_module" in moved(nowhere)
