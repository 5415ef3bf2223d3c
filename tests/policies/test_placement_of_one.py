"""One request is placed by a single pass over the units, where several need a heap."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import UnitId
from headway.policies.placement import DecodeUnit
from headway.policies.placement.greedy import by_arrival, place_greedily
from headway.policies.placement.lex import batch_then_kv
from tests.fakes.candidates import Prompt

SIZE, BLOCKS = 16, 64


@st.composite
def units(draw: st.DrawFn) -> list[DecodeUnit]:
    small = st.integers(0, 5)
    return [
        DecodeUnit(
            UnitId(f"decode-{n}", 0),
            draw(small),
            100 * draw(small),
            draw(st.integers(0, BLOCKS)),
            BLOCKS,
            draw(st.sampled_from((SIZE, SIZE // 2))),
            reserved_tokens=draw(st.sampled_from((0.0, 700.0))),
        )
        for n in range(draw(st.integers(1, 8)))
    ]


@given(units(), st.integers(1, 900), st.sampled_from((None, 0.0, 1.5)), st.booleans())
def test_it_goes_where_the_heap_would_send_it(
    found: list[DecodeUnit], num_tokens: int, k: float | None, is_barred: bool
) -> None:
    barred = (found[0].unit,) if is_barred else ()
    request = Prompt(1, num_tokens, 1.0, barred=barred)
    nobody = Prompt(2, 10**9, 2.0)  # fits nowhere
    others = deepcopy(found)
    alone = place_greedily([request], found, score=batch_then_kv, order=by_arrival, k=k, alarm=0.2)
    both = place_greedily(
        [request, nobody], others, score=batch_then_kv, order=by_arrival, k=k, alarm=0.2
    )
    assert alone == both
    assert found == others


@pytest.mark.parametrize("num_requests", [0, 1])
def test_without_a_unit_nobody_is_placed(num_requests: int) -> None:
    requests = [Prompt(n) for n in range(num_requests)]
    assert place_greedily(requests, [], score=batch_then_kv) == []
