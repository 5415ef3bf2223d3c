"""Whatever one key sends, another key's short request ends with its tokens, and nobody has a 5xx.

How many times its time alone it takes is ``headway bench abuse``'s to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.abuses.catalogue import CATALOGUE, Abuse
from bench.abuses.run import Abused
from headway.presets import PRESETS
from tests.fakes.local_cluster import MODEL

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FAST = (
    "ambiguous grammar, one output",
    "n=128, 200 tokens",
    "tiny streams",
    "streams that nobody reads",
    "detokenise nothing",
    "what-if by a client",
)


def fast_ones() -> Sequence[Abuse]:
    fast = [abuse for abuse in CATALOGUE if abuse.name in FAST]
    assert len(fast) == len(FAST)
    return fast


def require_sound(abuses: Sequence[Abuse], folder: Path, preset: str = "headway") -> None:
    abused = Abused(MODEL, preset, num_asked=3, longest=1.0)
    rows = asyncio.run(abused.rows(abuses, folder, lambda line: None))
    assert len(rows) == len(abuses)
    assert [f"{row.name}: {fault}" for row in rows for fault in row.faults] == []


def test_another_key_is_served_beside_the_fast_abuses(tmp_path: Path) -> None:
    require_sound(fast_ones(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "headway"])
def test_another_key_is_served_beside_the_fast_abuses_under(preset: str, tmp_path: Path) -> None:
    require_sound(fast_ones(), tmp_path, preset)


@pytest.mark.slow
def test_another_key_is_served_beside_every_other_abuse(tmp_path: Path) -> None:
    require_sound([abuse for abuse in CATALOGUE if abuse.name not in FAST], tmp_path)
