"""A replica over two processes says what one process says; real torchrun, gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.worker.config import WorkerConfig
from services.worker.engine.model.tensor_parallel import share_of_heads
from services.worker.loading import load_backend
from tests.fakes.engine_rig import prompt, reference_output

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(900)
RANK = "tests.fakes.tensor_parallel_rank"


def test_two_processes_give_the_tokens_of_generate(
    checkpoints: dict[str, str], tmp_path: Path
) -> None:
    """All families in one group: what takes long is to start it."""
    families = {family: checkpoints[family] for family in ("llama", "qwen2", "qwen3")}
    prompts = [prompt(length) for length in (1, 9, 40)]
    answer = tmp_path / "answer.json"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    arguments = (json.dumps(families), json.dumps(prompts), "6", str(answer))
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", RANK, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(answer.read_text())
    for family, folder in families.items():
        assert found[family]["kv_heads"] == 1  # of two
        assert found[family]["tokens"] == [reference_output(folder, each, 6) for each in prompts]


def test_heads_that_cannot_be_shared_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")

    class Config:
        num_attention_heads = 4
        num_key_value_heads = 2

    with pytest.raises(HeadwayError, match="3 processes cannot share 4 heads and 2 KV heads"):
        share_of_heads(Config)


def test_a_worker_of_several_processes_takes_no_part_of_a_disaggregated_pair(
    llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(HeadwayError, match="its role must be 'unified'"):
        load_backend(WorkerConfig(service_id="w", model=llama, role="decode"))
