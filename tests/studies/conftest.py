"""What tests of benches share."""

from __future__ import annotations

import pytest

from studies import warm


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies run on few requests in tests; the tests of the limit set it again."""
    monkeypatch.setattr(warm, "NUM_RESIDENCES", 0.0)
