"""Both wheels beside a plain vLLM, without the checkout: a policy plans its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.vllm_rig import MODEL
from tests.fakes.wheels import ROOT, VLLM, build_wheel, install

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
STEPS = """
import sys
from headway_vllm.overhead import measure, prepare_environment
prepare_environment()
measure(sys.argv[1], "uniboost", 4, 2, 3)
import headway_vllm.scheduler
loaded = {name.partition(".")[0] for name in sys.modules}
print("rooms", *sorted(loaded & set("services results bench models protos cli tests".split())))
"""


def test_the_installed_plug_in_plans_steps_of_vllm_without_our_rooms(tmp_path: Path) -> None:
    folders = tmp_path / "headway", tmp_path / "vllm"
    wheels = [build_wheel(p, f) for p, f in zip((ROOT, VLLM), folders, strict=True)]
    installed = install(tmp_path, *map(str, wheels))
    said = installed.run("python", "-c", STEPS, str(MODEL))
    assert said.splitlines()[-1] == "rooms"
