"""Environments of clients, and their cases run in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.clients.inside import FAILED
from bench.clients.roster import PeerClient
from bench.runner.processes import INSTALL_PATIENCE, run_quietly
from headway.errors import Code, HeadwayError

HERE = Path(__file__).parent
_STAMP = "requirements.txt"
_PATIENCE = 1800.0  # seconds for all cases of one client
_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How one case of one client ended."""

    client: str
    version: str
    case: str
    outcome: str
    said: str
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Figures of a tool (``client``) and of the ``gateway`` in the same run; mostly none."""


@dataclass(frozen=True, slots=True)
class ClientTarget:
    """The cluster that clients are pointed at; ``tokenizer``: its model's folder."""

    url: str
    model: str
    tokenizer: str


def python_of(client: PeerClient, folder: Path, given: Mapping[str, Path]) -> Path:
    """Return the interpreter of a client's environment, which is made where it is missing.

    ``given``: environments that stand elsewhere, by client. UNAVAILABLE where one cannot be made.
    """
    place = given.get(client.name, folder / client.name.replace(" ", "-"))
    python, stamp = place / "bin" / "python", place / _STAMP
    wanted = "\n".join(client.requirements)
    if client.name in given or (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
        return python
    place.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    maker = shutil.which(client.python) if client.python else sys.executable
    if maker is None:
        raise HeadwayError(Code.UNAVAILABLE, f"{client.name} needs {client.python} on PATH")
    for step in ([maker, "-m", "venv", str(place)], [*pip, *client.requirements]):
        failure = run_quietly(step, INSTALL_PATIENCE)
        if failure:
            raise HeadwayError(Code.UNAVAILABLE, f"{client.name} cannot be installed: {failure}")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def run_client(
    client: PeerClient, python: Path, target: ClientTarget, folder: Path
) -> list[CaseResult]:
    """Run all cases of a client; what it prints stands in ``folder``."""
    version = _version(client, python)
    out, log = (folder / f"{client.module}.{end}" for end in ("jsonl", "log"))
    out.unlink(missing_ok=True)
    at = (target.url, target.model, target.tokenizer, str(client.case_seconds))
    command = [str(python), str(HERE / "inside.py"), client.module, str(out), *at]
    ended = "its process ended"
    with log.open("wb") as words:
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE,
                check=True,
                env={**_environment(python), **_QUIET},
            )
            ended = ""
        except subprocess.TimeoutExpired:
            ended = f"its process was ended after {_PATIENCE:.0f} s"
        except subprocess.CalledProcessError as error:
            ended = f"its process ended ({error.returncode}); see {log.name}"
    results = _read(client.name, version, out)
    if ended:
        results.append(CaseResult(client.name, version, "all cases", FAILED, ended))
    return results


def _environment(python: Path) -> dict[str, str]:
    """Return an environment without this one's packages: the client's own come first."""
    kept = ("HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")
    inherited = {name: value for name, value in os.environ.items() if name in kept}
    return {**inherited, "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin"}


def _read(client: str, version: str, out: Path) -> list[CaseResult]:
    if not out.exists():
        return []
    lines = out.read_text(encoding="utf-8").splitlines()
    return [CaseResult(client, version, **json.loads(line)) for line in lines]


def _version(client: PeerClient, python: Path) -> str:
    ask = f"from importlib.metadata import version; print(version({client.package!r}))"
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def packed(results: Sequence[CaseResult]) -> dict[str, object]:
    """Return the results for JSON."""
    return {"date": time.strftime("%Y-%m-%d"), "cases": [asdict(each) for each in results]}
