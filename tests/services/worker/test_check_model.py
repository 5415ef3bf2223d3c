"""A model that no worker could serve is refused before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Code, HeadwayError
from services.worker.engine.model.check import check_model

ROOT = Path(__file__).parents[3]
MINI = ROOT / "models" / "headway-mini"


def write_config(folder: Path, **changes: Any) -> str:
    config = json.loads((MINI / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_model_that_is_served_passes_without_torch() -> None:
    code = (
        "import sys; from services.worker.engine.model.check import check_model; "
        f"check_model({str(MINI)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("name", ["no such folder", "/no/such/folder", "models/absent/mini"])
def test_a_folder_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(HeadwayError, match=f"'{name}' is neither a folder nor a hub id") as refused:
        check_model(name)
    assert refused.value.code is Code.NOT_FOUND


def test_a_hub_id_is_refused_where_no_hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(HeadwayError, match="the hub is not reachable"):
        check_model("headway/absent")


@pytest.mark.parametrize(
    ("text", "said"), [(None, "config.json cannot be read"), ("{", "not JSON"), ("[]", "an object")]
)
def test_a_folder_without_a_readable_config_is_refused(
    tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(HeadwayError, match=said) as refused:
        check_model(str(tmp_path))
    assert refused.value.code is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt_oss"}, r"'gpt_oss' \(attention sinks\)"),
        ({"text_config": {"layer_types": ["linear_attention"]}}, "type is 'linear_attention'"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'"),
    ],
)
def test_a_model_that_workers_refuse_is_refused_alike(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = write_config(tmp_path, **({"rope_parameters": None} | changes))
    with pytest.raises(HeadwayError, match=said) as refused:
        check_model(folder)
    assert refused.value.code is Code.FAILED_PRECONDITION
