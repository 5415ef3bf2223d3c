"""``headway bench vllm --virtual``: its load, its figures, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from bench.vllm.mix import MixArrival, read_mix, spaced
from bench.vllm.virtual import FIGURES, figures_of
from headway.errors import HeadwayError


class Served(NamedTuple):
    ttft: float
    ttfat: float
    e2e: float
    num_preemptions: int = 0


class Run(NamedTuple):
    served: Sequence[Served]
    seconds: float


def test_the_mix_has_chats_and_reasoning_at_their_share() -> None:
    load = read_mix(unread=0.5).draw(4000, 0.3, Random(1))
    longs = [each for each in load if each.reasoning]
    assert len(longs) / len(load) == pytest.approx(0.3, abs=0.03)
    assert {each.priority for each in longs} == {1}
    assert all(each.reasoning >= 2 and each.answer >= 1 and each.prompt >= 32 for each in longs)
    assert sum(each.is_read for each in load) / len(load) == pytest.approx(0.5, abs=0.03)


def test_a_mix_of_ones_own_replaces_the_lengths_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "mix.toml"
    file.write_text("[chat]\nprompt = 10\n[long]\nreasoning = 70\n", "utf-8")
    for each in read_mix(file).draw(50, 0.5, Random(1)):
        assert each.reasoning == 70 or (each.reasoning, each.prompt) == (0, 10)
    file.write_text("[chats]\nprompt = 10\n", "utf-8")
    with pytest.raises(HeadwayError, match="chats"):
        read_mix(file)
    with pytest.raises(HeadwayError, match="--mix"):
        read_mix(tmp_path / "none.toml")


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    load = spaced(read_mix().draw(2000, 0.3, Random(1)), 5.0, Random(2))
    assert [each.at for each in load] == sorted(each.at for each in load)
    assert load[-1].at == pytest.approx(2000 / 5.0, rel=0.1)


def test_figures_are_by_kind_and_a_kind_that_is_not_there_has_none() -> None:
    chat, long = MixArrival(0.0, 10, 0, 10, True), MixArrival(0.0, 10, 20, 10, True)
    run = Run([Served(0.5, 0.5, 2.0, 1), Served(2.0, 2.0, 3.0), Served(0.1, 4.0, 9.0)], 10.0)
    found = figures_of([chat, chat, long], run)
    assert found["chat_in_time"] == 0.5
    assert found["long_e2e_p99"] == 9.0
    assert (found["tokens_per_s"], found["num_preemptions"]) == (5.0, 1.0)
    assert {figure.name for figure in FIGURES} <= set(found)
    assert not any(name.startswith("long") for name in figures_of([chat], Run(run.served[:1], 1)))
