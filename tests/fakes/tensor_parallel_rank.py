"""One process of a group under torchrun: greedy continuations, for the test beside this file.

Arguments: the checkpoint, the prompts as JSON, the number of tokens, the file for the answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from services.worker.engine.model.tensor_parallel import is_follower
from tests.fakes.engine_rig import Run, Schedule, load


def main(folder: str, prompts: str, num_tokens: str, answer: str) -> None:
    """Lead or follow."""
    torch.set_num_threads(1)
    backend = load(folder, num_blocks=64, block_size=8, num_host_blocks=8)
    if is_follower():
        backend.follow()
        return
    backend.warm_up()
    runs = [Run(tuple(prompt), int(num_tokens)) for prompt in json.loads(prompts)]
    tokens = Schedule(backend, chunk=20).complete(runs)
    backend.close()
    found = {"tokens": tokens, "kv_heads": backend.kv_shape(1)[3]}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
