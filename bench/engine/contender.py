"""An engine under measurement: loads a model, then runs jobs from its input, a JSON line each.

``python bench/engine/contender.py ENGINE MODEL``. The engine ``vllm`` needs nothing of this
project, so that it can have an environment of its own; ``headway-vllm`` and ``vllm-core`` need
both. A job is ``{"prompts": [[id, …], …], "output_tokens": n}``: greedy, without an end of
sequence. Its result is ``{"seconds": s, "tokens": [[id, …], …], "peak_bytes": n}``. The first line
is the engine's version.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

Prompts = Sequence[Sequence[int]]
Generate = Callable[[Prompts, int], list[list[int]]]

MAX_MODEL_LEN = 2048


def main() -> None:
    """Serve jobs until the input ends."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("model", help="a checkpoint's folder")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--concurrency", type=int, default=32, help="most requests of a job")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print to standard output
    version, generate = ENGINES[args.engine](args)
    _answer(answers, {"version": version})
    for line in sys.stdin:
        job = json.loads(line)
        started_at = time.perf_counter()
        tokens = generate(job["prompts"], job["output_tokens"])
        seconds = time.perf_counter() - started_at
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _answer(answers, {"seconds": seconds, "tokens": tokens, "peak_bytes": peak})


def _answer(answers: TextIO, answer: object) -> None:
    print(json.dumps(answer), file=answers, flush=True)


# --- the engines ----------------------------------------------------------------------


def headway(args: argparse.Namespace) -> tuple[str, Generate]:
    """Run the worker's core and engine as a worker does, without a network."""
    from importlib.metadata import version

    from bench.engine.loop import EngineLoop, torch_backend

    sizes = (args.threads, args.concurrency, MAX_MODEL_LEN)
    return version("headway"), EngineLoop(torch_backend(args.model, args.dtype, *sizes)).generate


def deterministic(args: argparse.Namespace) -> tuple[str, Generate]:
    """Run the same with ``--deterministic``."""
    from importlib.metadata import version

    from bench.engine.loop import EngineLoop, torch_backend

    sizes = (args.threads, args.concurrency, MAX_MODEL_LEN)
    backend = torch_backend(args.model, args.dtype, *sizes, deterministic=True)
    return version("headway"), EngineLoop(backend).generate


def generate(args: argparse.Namespace) -> tuple[str, Generate]:
    """Run transformers' ``model.generate()``: one static batch."""
    import torch
    import transformers

    model = _network(args)

    def run(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
        )
        return [row[len(prompts[0]) :] for row in output.tolist()]

    return f"transformers {transformers.__version__}", run


def continuous(args: argparse.Namespace) -> tuple[str, Generate]:
    """Run transformers' continuous batching, one manager for all jobs."""
    import transformers

    from bench.engine.continuous import ContinuousBatching

    batching = ContinuousBatching(
        _network(args),
        page_size=16,
        num_blocks=args.concurrency * MAX_MODEL_LEN // 16,
        max_batch_tokens=MAX_MODEL_LEN,
    )

    def run(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        return [each.generated_tokens for each in batching.generate(prompts, num_tokens)]

    return f"transformers {transformers.__version__}", run


def _network(args: argparse.Namespace) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    factory: Any = AutoModelForCausalLM
    model = factory.from_pretrained(args.model, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def vllm(args: argparse.Namespace) -> tuple[str, Generate]:
    """Run vLLM on the CPU, in this process, without prefix caching."""
    os.environ |= {
        "OMP_NUM_THREADS": str(args.threads),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    module: Any = importlib.import_module("vllm")
    engine = module.LLM(
        args.model,
        dtype=args.dtype,
        skip_tokenizer_init=True,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=args.concurrency,
        enable_prefix_caching=False,
        enforce_eager=True,
    )

    def run(prompts: Prompts, num_tokens: int) -> list[list[int]]:
        greedy = module.SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = engine.generate(asked, greedy, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]

    return f"vllm {module.__version__}", run


def headway_vllm(args: argparse.Namespace) -> tuple[str, Generate]:
    """Run the worker's core over vLLM's kernels, as ``--engine vllm`` does."""
    from bench.engine.loop import EngineLoop

    sizes = (args.threads, args.concurrency, MAX_MODEL_LEN)
    loaded, version = _over_vllm().backend(args.model, args.dtype, *sizes)
    return version, EngineLoop(loaded).generate


def vllm_core(args: argparse.Namespace) -> tuple[str, Generate]:
    """Run the same engine of vLLM under its own scheduler and sampler, without its front."""
    sizes = (args.threads, args.concurrency, MAX_MODEL_LEN)
    loop = _over_vllm().StockLoop(args.model, args.dtype, *sizes)
    return loop.version, loop.generate


def _over_vllm() -> Any:
    return importlib.import_module("headway_vllm.contenders")


ENGINES: dict[str, Callable[[argparse.Namespace], tuple[str, Generate]]] = {
    "headway": headway,
    "deterministic": deterministic,
    "generate": generate,
    "continuous": continuous,
    "vllm": vllm,
    "headway-vllm": headway_vllm,
    "vllm-core": vllm_core,
}

if __name__ == "__main__":
    main()
