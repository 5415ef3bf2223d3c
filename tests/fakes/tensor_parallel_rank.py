"""One process of a group under torchrun: greedy continuations, for ``test_engine_tensor_parallel``.

Arguments: the checkpoints by family and the prompts, both as JSON, the number of tokens, the file
for the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import torch

from services.worker.engine import backend as of_backend
from services.worker.engine.model.tensor_parallel import is_follower, leave_group
from tests.fakes.engine_rig import Run, Schedule, load


def main(folders: str, prompts: str, num_tokens: str, answer: str) -> None:
    """Lead or follow, one model after the other."""
    torch.set_num_threads(1)
    asked = [tuple(prompt) for prompt in json.loads(prompts)]
    with patch.object(of_backend, "leave_group"):  # one group for all models
        found = {
            family: _continuations(folder, asked, int(num_tokens))
            for family, folder in json.loads(folders).items()
        }
    leave_group()
    if all(found.values()):
        Path(answer).write_text(json.dumps(found), encoding="utf-8")


def _continuations(
    folder: str, prompts: Sequence[tuple[int, ...]], num_tokens: int
) -> dict[str, object]:
    """Return what the process that leads has drawn; nothing for one that follows."""
    backend = load(folder, num_blocks=64, block_size=8, num_host_blocks=8)
    if is_follower():
        backend.follow()
        return {}
    backend.warm_up()
    tokens = Schedule(backend, chunk=20).complete([Run(each, num_tokens) for each in prompts])
    backend.close()
    return {"tokens": tokens, "kv_heads": backend.kv_shape(1)[3]}


if __name__ == "__main__":
    main(*sys.argv[1:])
