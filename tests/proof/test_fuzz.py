"""The fuzzers: the same seed, the same inputs; findings are made small, saved and tried again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli import main
from proof.fuzz.campaign import raised, run, shrink
from proof.fuzz.cores import CoresTarget
from proof.fuzz.wire import KINDS, WireTarget


class Fragile:
    """A target that breaks on an ``x`` before a ``y``."""

    unit = 1
    outcomes: Mapping[str, int] = {"tried": 1}

    def make(self, rng: random.Random) -> bytes:
        return bytes(rng.choice(b"abcxy") for _ in range(40))

    def attempt(self, given: bytes) -> str:
        return "x before y" if b"y" in given[given.find(b"x") + 1 :] and b"x" in given else ""

    def check(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_a_finding_is_made_as_small_as_it_can_be() -> None:
    assert shrink(Fragile(), b"abxccabcyab" * 5, "x before y") == b"xy"


def test_the_first_input_of_a_finding_is_saved(tmp_path: Path) -> None:
    found = run("k", Fragile(), num_inputs=50, seed=1, folder=tmp_path, say=lambda line: None)
    assert not found.holds
    assert found.findings["x before y"] > 1
    (path,) = found.saved
    assert Path(path).read_bytes() == b"xy"
    assert found.lines()[-1] == "  FAILED"


@pytest.mark.parametrize("target", [WireTarget, CoresTarget])
def test_the_same_seed_makes_the_same_inputs(target: type[WireTarget | CoresTarget]) -> None:
    made = [[target().make(random.Random(seed)) for _ in range(1)] for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_a_finding_names_what_was_raised_and_where() -> None:
    try:
        int("x")
    except ValueError as error:
        assert raised(error).startswith("ValueError at tests/proof/test_fuzz.py:")


def test_every_kind_of_message_is_refused_or_taken(tmp_path: Path) -> None:
    target = WireTarget()
    found = run("wire", target, num_inputs=1500, seed=3, folder=tmp_path, say=lambda line: None)
    assert found.holds, found.lines()
    assert min(target.outcomes[name] for name in ("taken", "refused", "no message")) > 50
    assert len(KINDS) == 13


def test_no_order_of_messages_breaks_a_core(tmp_path: Path) -> None:
    target = CoresTarget()
    found = run("cores", target, num_inputs=60, seed=3, folder=tmp_path, say=lambda line: None)
    assert found.holds, found.lines()
    assert min(target.outcomes[name] for name in ("taken", "refused", "woken")) > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "schema", "store"])
def test_a_real_gateway_and_a_real_store_take_what_is_damaged(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--inputs", "3000", "--seed", "5", "--folder", str(tmp_path))
    assert main(["fuzz", kind, *flags]) == 0, capsys.readouterr().out
