"""Adapters beside each other, tokens of refused drafts, and drawing along drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from headway_vllm.admission import Adapters, kept
from headway_vllm.drafts import draw_along, split


def with_adapter(number: int) -> Any:
    return SimpleNamespace(lora_request=SimpleNamespace(lora_int_id=number) if number else None)


def test_a_step_takes_as_many_adapters_as_it_may_serve() -> None:
    adapters = Adapters([with_adapter(1), with_adapter(0)], 2)
    assert adapters.take(with_adapter(2))
    assert not adapters.take(with_adapter(3))
    assert adapters.take(with_adapter(1))
    assert adapters.take(with_adapter(0))


def test_nobody_is_left_out_whose_adapter_would_lose_its_place() -> None:
    adapters = Adapters([with_adapter(1), with_adapter(1), with_adapter(0)], 1)
    assert adapters.leave(with_adapter(0))
    assert adapters.leave(with_adapter(1))
    assert not adapters.leave(with_adapter(1))
    assert adapters.take(with_adapter(1))  # one that waits holds no place for one that runs
    assert not adapters.leave(with_adapter(1))


def test_without_adapters_everybody_is_taken_and_left_out() -> None:
    adapters = Adapters([with_adapter(0)], 0)
    assert adapters.take(with_adapter(0))
    assert adapters.leave(with_adapter(0))


@dataclass
class Out:
    request_id: str
    new_token_ids: Sequence[int]
    finish_reason: object | None = field(default=None)


def test_the_tokens_of_refused_drafts_are_not_kept() -> None:
    counts = {"all": 4, "some": 4, "none": 3, "plain": 1, "prompt": 64}
    drafts = {"all": [1, 2, 3], "some": [1, 2, 3], "none": [1, 2]}
    drawn = [Out("all", [1, 2, 3, 9]), Out("some", [1, 9]), Out("none", [9]), Out("plain", [9])]
    left = {"all": 4, "some": 2, "none": 1, "plain": 1, "prompt": 64}
    assert kept(counts, drafts, drawn) == left
    assert kept(counts, {}, drawn) is counts


def test_a_request_draws_on_as_long_as_the_draw_is_the_draft() -> None:
    drafts = split([5, 6, 7, 8, 4], [3, 0, 1, 1])
    assert drafts == [[5, 6, 7], [], [8], [4]]
    logits = [5, 6, 1, 0, 3, 8, 2, 4, 4]  # what each row draws
    asked: list[tuple[list[int], list[int]]] = []

    def draw(places: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
        asked.append((list(places), list(rows)))
        return [logits[row] for row in rows]

    draw_along(drafts, [0, 1, 2], draw)
    assert asked == [([0, 1, 2], [0, 4, 5]), ([0, 2], [1, 6]), ([0], [2])]
