"""The committed stubs are what the protos generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_committed_stubs_are_those_of_the_protos(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "protos.generate", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    generated = sorted((tmp_path / "protos").iterdir())
    assert generated
    for stub in generated:
        committed = ROOT / "protos" / stub.name
        assert committed.read_text() == stub.read_text(), f"{stub.name}: run make protos"
