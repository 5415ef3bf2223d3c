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
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from headway.errors import Code, HeadwayError
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
Requires = Callable[[str], Sequence[str]]
"""The requirements of an installed package."""


def closure(
    names: Iterable[str], requires: Requires, stays: Iterable[str], python: str = PYTHON
) -> list[str]:
    """Return packages and all that they need on the machine, less what stays; in order."""
    left, there = [canonical(name) for name in names], {canonical(name) for name in stays}
    needed: set[str] = set()
    while left:
        name = left.pop()
        if name in needed or name in there:
            continue
        needed.add(name)
        left += wanted(requires(name), python)
    return sorted(needed)


def wanted(requirements: Iterable[str], python: str = PYTHON) -> list[str]:
    """Return the names of requirements that hold on the machine, without extras."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.3",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "os_name": "posix",
        "extra": "",
    }
    parsed = [Requirement(text) for text in requirements]
    return [canonical(r.name) for r in parsed if r.marker is None or r.marker.evaluate(environment)]


def canonical(name: str) -> str:
    """Return a package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(constraints: str) -> dict[str, str]:
    """Return the version of every package that ``constraints.txt`` pins."""
    lines = (line.partition("#")[0].strip() for line in constraints.splitlines())
    parts = (line.partition("==") for line in lines if "==" in line)
    return {canonical(name): version for name, _, version in parts}


def of_headway(requires: Requires | None = None) -> dict[str, str]:
    """Return name and version of what Headway needs there; HeadwayError for one without a pin."""
    project = tomllib.loads((ROOMS / "pyproject.toml").read_text("utf-8"))["project"]
    known = pins((ROOMS / "constraints.txt").read_text("utf-8"))
    names = closure(wanted(project["dependencies"]), requires or _installed, STAYS)
    missing = [name for name in names if name not in known]
    if missing:
        message = f"constraints.txt pins no version of {', '.join(missing)}: add one"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    return {name: known[name] for name in names}


def _installed(name: str) -> Sequence[str]:
    """Return a package's requirements; none for one that this machine does not need itself."""
    try:
        return metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return ()


def download_command(packages: Mapping[str, str], folder: Path) -> list[str]:
    """Return the command that fetches wheels for the machine."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    kind = ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation"]
    platforms = [part for each in PLATFORMS for part in ("--platform", f"{each}_x86_64")]
    names = [f"{name}=={version}" for name, version in packages.items()]
    return [*pip, *kind, "cp", *platforms, "--dest", str(folder), *names]


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
    parser.add_argument("--list", action="store_true", help="name them, and download nothing")
    args = parser.parse_args(arguments)
    packages = of_headway()
    if args.list:
        print("\n".join(f"{name}=={version}" for name, version in packages.items()))
        return 0
    failed = subprocess.run(download_command(packages, args.out), check=False).returncode
    wheels = sizes(args.out)
    for file, size in wheels.items():
        print(f"{size / MIB:7.2f} MiB  {file}")
    print(f"{sum(wheels.values()) / MIB:.1f} MiB of wheels")
    print(f"\n{there(args.out)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
