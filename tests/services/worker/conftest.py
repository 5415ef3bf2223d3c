"""Checkpoints that the engine's tests share."""

from __future__ import annotations

import pytest

from tests.fakes import engine_rig


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One folder per family."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        family: engine_rig.save_checkpoint(root / family, family) for family in engine_rig.FAMILIES
    }


@pytest.fixture(scope="session")
def llama(checkpoints: dict[str, str]) -> str:
    return checkpoints["llama"]
