"""Help and refusals of typed mistakes import nothing that takes long: torch, gRPC, the store.

A start imports torch, and little of what comes with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.local.options import ClusterOptions, imports_ahead

HEAVY = frozenset(("grpc", "redis", "structlog", "torch", "transformers", "uvloop")) | {
    *("accelerate", "aiohttp", "cryptography", "httpx", "huggingface_hub", "matplotlib"),
    "opentelemetry",
}
NUMBERS = HEAVY | {"numpy"}
"""Imports of those that read no trace and no profile."""
MODELS = NUMBERS | {"pydantic"}
"""Imports of those that need no service's options."""

_SHOW = """
import json, sys
from headway_launch import main
sys.argv[0] = "headway"
try:
    status = main()
except SystemExit as ending:
    status = ending.code
print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)
"""


def imported_by(words: str, folder: Path) -> tuple[int, frozenset[str], str]:
    """Return the exit status of ``headway WORDS``, what it imported, and what it printed."""
    argv = [sys.executable, "-c", _SHOW, *words.split()]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)
    *said, last = done.stderr.splitlines()
    status, modules = json.loads(last)
    return status, frozenset(name.partition(".")[0] for name in modules), "\n".join(said)


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ("--help", MODELS),
        ("up --help", MODELS),
        ("service --help", MODELS),
        ("bench --help", MODELS),
        ("simulate --help", HEAVY),
        ("plan --help", HEAVY),
        ("demo --help", HEAVY),
        ("reproduce --help", HEAVY),
        ("profile run --help", HEAVY),
        ("explain --help", MODELS),
        ("trace --help", MODELS),
        ("picker --help", NUMBERS),
        ("policies", NUMBERS - {"numpy"}),
        ("service worker --help", NUMBERS),
        ("service gateway --help", NUMBERS),
        ("service scheduler --help", NUMBERS),
    ],
)
def test_help_imports_nothing_that_takes_long(
    words: str, heavy: frozenset[str], tmp_path: Path
) -> None:
    status, imported, _ = imported_by(words, tmp_path)
    assert status == 0
    assert sorted(imported & heavy) == []


@pytest.mark.parametrize(
    ("words", "heavy", "says"),
    [
        ("upp", MODELS, "invalid choice: 'upp'"),
        ("up --prefil 2", NUMBERS, "unknown argument --prefil: did you mean --prefill"),
        ("up --policy batching=nope", MODELS, "batching is 'nope'; it must be one of"),
        ("up --set batching.nope=1", MODELS, "parameter is 'nope'"),
        ("up --preset nope", MODELS, "preset is 'nope'; it must be one of"),
        ("up --prefill two", MODELS, "invalid int value: 'two'"),
        ("up --device gpu", NUMBERS, "--device is 'gpu'"),
        ("up --engine nope", HEAVY, "engine is 'nope'"),
        ("up --model /nonexistent", HEAVY, "no folder of that name exists"),
        ("demo --policy batching=nope", NUMBERS, "batching is 'nope'"),
        ("simulate nope", HEAVY, "nope"),
        ("simulate chat-and-reasoning --preset nope", HEAVY, "preset is 'nope'"),
        ("reproduce sbs --policy batching=nope", HEAVY, "batching is 'nope'"),
        ("reproduce sbs --profile llama-8b-a100", HEAVY, "it must be for topology alone"),
        ("reproduce topology --profile nope", HEAVY, "there is no profile 'nope'"),
        ("plan", HEAVY, "required: --trace"),
        ("profile run", HEAVY, "required: --out"),
        ("explain", MODELS, "required: request"),
        ("picker --longest-hold nope", NUMBERS, "--longest-hold is 'nope'"),
        ("picker --nope", NUMBERS, "headway service picker: unrecognized arguments: --nope; "),
        ("service worker --nope", NUMBERS, "unrecognized arguments: --nope; headway service"),
        ("service worker --role nope", NUMBERS, "--role is 'nope'"),
        ("service gateway --http-port nope", NUMBERS, "--http-port is 'nope'"),
        ("service scheduler --policy placement=nope", NUMBERS, "placement is 'nope'"),
    ],
)
def test_a_typed_mistake_is_refused_before_anything_that_takes_long_is_imported(
    words: str, heavy: frozenset[str], says: str, tmp_path: Path
) -> None:
    status, imported, said = imported_by(words, tmp_path)
    assert status == 2
    assert says in said
    assert len(said.splitlines()) == 1
    assert sorted(imported & heavy) == []
    assert not list(tmp_path.iterdir())


SLOWER_THAN_TORCH = ("accelerate", "sympy", "torch._dynamo", "transformers", "triton")
_IMPORT_AHEAD = """
import sys
from importlib import import_module
from services.local.options import ClusterOptions, imports_ahead
for name in imports_ahead(ClusterOptions()):
    import_module(name)
print("torch" in sys.modules, *(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_the_services_of_a_plain_model_import_torch_alone() -> None:
    argv = [sys.executable, "-c", _IMPORT_AHEAD, *SLOWER_THAN_TORCH]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["True"]


def test_the_services_of_another_model_import_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    ahead = imports_ahead(ClusterOptions(model=str(tmp_path)))
    assert ahead[-1] == "transformers.models.qwen3.modeling_qwen3"
    assert not any("transformers" in name for name in imports_ahead(ClusterOptions()))
