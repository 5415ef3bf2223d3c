"""The wheel with compiled cores decides as the plain one does, to the last byte."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "headway" / "scenarios" / "chat-and-reasoning.toml"
PRESETS = "vllm-like,headway,star"
WHERE = "import headway.core.worker.core as core; print(core.__file__)"


def build_wheel(source: Path, into: Path) -> Path:
    """A compiled wheel of what is checked out, unpacked."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    source.mkdir()
    for name in ("pyproject.toml", "README.md", *wheel["targets"]["wheel"]["only-include"]):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    project = source / "pyproject.toml"  # neither optimised nor one file, which take minutes
    options = 'opt_level = "0", debug_level = "0", multi_file = true'
    text = project.read_text("utf-8")
    assert 'opt_level = "1"' in text
    project.write_text(text.replace('opt_level = "1"', options))
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    environ = {**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"}
    run = subprocess.run(
        [*pip, "-w", str(source / "dist"), str(source)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    (wheel,) = (source / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(into)
    return into


def python(code: Path, *arguments: str) -> str:
    """What a Python says that finds Headway there."""
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_compiled_cores_simulate_as_plain_ones_do(tmp_path: Path) -> None:
    compiled = build_wheel(tmp_path / "source", tmp_path / "compiled")
    assert python(compiled, "-c", WHERE).strip().endswith(".so")
    assert python(ROOT, "-c", WHERE).strip().endswith(".py")
    scenario, text = tmp_path / "few.toml", SCENARIO.read_text("utf-8")
    assert "num_requests = 1500" in text
    scenario.write_text(text.replace("num_requests = 1500", "num_requests = 500"))
    plain, fast = (
        simulated(code, scenario, tmp_path / f"of-{code.name}") for code in (ROOT, compiled)
    )
    assert plain
    assert fast == plain


def simulated(code: Path, scenario: Path, out: Path) -> dict[str, bytes]:
    """Every request's times and every decision, by file; also of a fleet that is scaled."""
    run = ("-m", "headway_launch", "simulate", str(scenario))
    python(code, *run, "--preset", PRESETS, "--out", str(out))
    python(code, *run, "--preset", "sbs", "--autoscale", "--out", str(out / "scaled"))
    return {str(f.relative_to(out)): f.read_bytes() for f in out.rglob("*") if f.is_file()}


def compiled_files() -> list[Path]:
    """The files that the wheel's build turns into machine code."""
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    patterns = hooks["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    found = {path for pattern in patterns for path in ROOT.glob(pattern.removeprefix("/"))}
    return sorted(path for path in found if path.name != "__init__.py")


def test_no_compiled_class_has_declared_bounds() -> None:
    """A compiled class cannot have an interpreted base and slots: its module fails to import."""
    files = compiled_files()
    assert len(files) > 50
    bounded = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Bounded" for base in node.bases)
    ]
    assert bounded == []
