"""Gateway scenarios as text: what clients, scheduler and workers do, and what the gateway does.

Each file of ``gateway/`` is a list of steps: one command a line, ``----``, then the actions that
follow, up to an empty line. Time stands still but for ``wait``. After an intended change of
behaviour run with ``HEADWAY_REWRITE_SCENARIOS=1`` and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.gateway_text import GatewayScenario
from tests.fakes.scenarios import check

FILES = sorted((Path(__file__).parent / "gateway").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, GatewayScenario().run)
