"""Wheels for a machine with a card and no network: ``python -m bench.card.wheels``.

Such a machine has what is heavy: Python, torch and triton for its driver, transformers. What
Headway needs beyond that is downloaded here, in the versions that ``constraints.txt`` pins, for
that machine's Python. The last line printed installs it there, beside and not over what is there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from services.runtime.rooms import ROOMS

PYTHON = "3.12"
MIB = 2**20
STAYS = (
    *("torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "huggingface-hub"),
    *("jinja2", "rich", "uvloop", "typing-extensions", "packaging", "certifi", "idna", "anyio"),
)
"""Packages that the machine has in a fitting version, or that need its own torch or driver."""
PLATFORMS = ("manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_27",
             "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_5",
             "manylinux1")  # fmt: skip
"""pip takes each of them as it stands, and none that is older by itself."""


def needed() -> list[str]:
    """Return Headway's own requirements, less what stays; pip finds what they need in turn."""
    project = tomllib.loads((ROOMS / "pyproject.toml").read_text("utf-8"))["project"]
    return [text for text in project["dependencies"] if name_of(text) not in STAYS]


def name_of(text: str) -> str:
    """Return the package's name as indexes spell it, of a requirement or of a wheel's file."""
    name = re.split(r"[^\w.-]|-\d", text, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def download_command(folder: Path) -> list[str]:
    """Return the command that fetches wheels for the machine."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    kind = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    platforms = [part for each in PLATFORMS for part in ("--platform", f"{each}_x86_64")]
    pins = ["--constraint", str(ROOMS / "constraints.txt")]
    return [*pip, *kind, *platforms, *pins, "--dest", str(folder), *needed()]


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every wheel in a folder, the largest first."""
    by_name = {path.name: path.stat().st_size for path in folder.glob("*.whl")}
    return dict(sorted(by_name.items(), key=lambda each: (-each[1], each[0])))


def there(folder: Path, step: str = "cluster") -> str:
    """Return the line that installs the wheels on the machine and runs a step."""
    target = ".site"
    install = "python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir"
    run = f"PYTHONPATH={target}:. PYTHONUNBUFFERED=1 python3 -m bench.gpu {step}"
    report = f"--folder .card --json {step}.json"
    return f"{install} --upgrade --target {target} {folder}/*.whl && {run} {report}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Download, sum up, and print the line; 1 where something is missing."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m bench.card.wheels", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=Path(".whl"), help="folder of the wheels")
    args = parser.parse_args(arguments)
    failed = subprocess.run(download_command(args.out), check=False).returncode
    for wheel in args.out.glob("*.whl"):
        if name_of(wheel.name) in STAYS:  # beside, and not over what is there
            wheel.unlink()
    wheels = sizes(args.out)
    for file, size in wheels.items():
        print(f"{size / MIB:7.2f} MiB  {file}")
    print(f"{sum(wheels.values()) / MIB:.1f} MiB of wheels")
    print(f"\n{there(args.out)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
