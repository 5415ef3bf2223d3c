"""Which pods are endpoints: those that a pool selects, that are ready, and that stay."""

from __future__ import annotations

from dataclasses import replace

from headway.core.picker.pods import PodFacts, PoolPods, PoolSpec

_POOL = PoolSpec({"app": "vllm"}, (8000,))
_POD = PodFacts("a", "10.0.0.1", {"app": "vllm", "more": "x"}, is_ready=True)


def _pods(*pods: PodFacts) -> PoolPods:
    found = PoolPods()
    found.pool_is(_POOL)
    found.listed(pods)
    return found


def test_a_ready_pod_is_an_endpoint_at_each_target_port() -> None:
    pods = _pods(_POD)
    pods.pool_is(replace(_POOL, ports=(8000, 8001)))
    assert pods.endpoints == (("10.0.0.1", 8000), ("10.0.0.1", 8001))


def test_a_pod_that_is_not_ready_or_has_no_address_is_none() -> None:
    others = (replace(_POD, is_ready=False), replace(_POD, name="b", ip=""))
    assert _pods(*others).endpoints == ()


def test_a_pod_that_is_deleted_gets_no_request_while_it_still_is_ready() -> None:
    pods = _pods(_POD)
    pods.changed(replace(_POD, is_leaving=True))
    assert pods.endpoints == ()


def test_labels_count_as_they_are_now() -> None:
    pods = _pods(_POD)
    pods.changed(replace(_POD, labels={"app": "other"}))
    assert pods.endpoints == ()


def test_a_list_is_all_that_there_is() -> None:
    pods = _pods(_POD)
    pods.listed([replace(_POD, name=name, ip=f"10.0.0.{name}") for name in "23"])
    assert {address for address, _ in pods.endpoints} == {"10.0.0.2", "10.0.0.3"}
    pods.gone("2")
    pods.gone("c")
    assert pods.endpoints == (("10.0.0.3", 8000),)


def test_another_selector_selects_other_pods_and_other_ports_do_not() -> None:
    pods = _pods(_POD)
    assert not pods.pool_is(replace(_POOL, ports=(1,)))
    assert pods.pool_is(PoolSpec({"app": "other"}, (1,)))
    assert pods.endpoints == ()


def test_a_pool_without_labels_and_no_pool_select_nothing() -> None:
    pods = _pods(_POD)
    for spec in (PoolSpec({}, (8000,)), None):
        pods.pool_is(spec)
        pods.listed([_POD])
        assert pods.endpoints == ()
