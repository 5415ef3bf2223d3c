"""What a run of histories prints, and where a shrunk one is written."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

from headway.errors import Code, HeadwayError
from proof.vopr.campaign import SeedCampaign
from proof.vopr.history import History
from proof.vopr.scenario import command_for
from proof.vopr.shrink import shrink

_ROOT = Path(__file__).resolve().parents[2]


def commit() -> str:
    """Return the commit of this checkout, or the release of an installed wheel."""
    call = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    try:
        said = subprocess.run(call, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return metadata.version("headway")
    return said.stdout.strip()


def print_history(history: History, preset: str) -> None:
    """Print the outcome of one history, and how to run it again."""
    scenario = history.scenario
    outcome = "breaks a promise" if history.violations else "keeps every promise"
    print(f"seed {scenario.seed} ({scenario.preset}, commit {commit()}) {outcome}")
    for violation in history.violations:
        print(f"  {violation}")
    if history.violations:
        for fault in scenario.faults:
            name = fault.kind.name.lower().replace("_", "-")
            print(f"  {fault.at:.3f} s: {name} on {fault.on} {fault.to} for {fault.lasts:.3f} s")
        print(f"  again: {command_for(scenario.seed, preset)} --shrink")
    print(f"  hash {history.digest}")


def print_summary(campaign: SeedCampaign, missing: list[str]) -> None:
    """Print the figures of a run."""
    if not campaign.is_single:
        for state, count in sorted(campaign.sometimes.items()):
            print(f"{count:>9} × {state}")
    for state in missing:
        print(f"never reached: {state}")
    rate = campaign.num_histories / max(campaign.seconds, 1e-9)
    print(
        f"{campaign.num_histories} histories, {len(campaign.failed)} broke a promise; "
        f"{campaign.num_requests} requests, {campaign.num_tokens} tokens, "
        f"{campaign.virtual_seconds:.0f} s of cluster time in {campaign.seconds:.1f} s "
        f"({rate:.1f} histories/s)"
    )


def figures(campaign: SeedCampaign, missing: list[str]) -> dict[str, object]:
    """Return the figures of a run, for a file."""
    return {
        "commit": commit(),
        "histories": campaign.num_histories,
        "failed": [
            {"seed": h.scenario.seed, "preset": h.scenario.preset, "violations": h.violations}
            for h in campaign.failed
        ],
        "requests": campaign.num_requests,
        "tokens": campaign.num_tokens,
        "passes": campaign.num_passes,
        "virtual_seconds": campaign.virtual_seconds,
        "seconds": campaign.seconds,
        "ends": dict(sorted(campaign.ends.items())),
        "sometimes": dict(sorted(campaign.sometimes.items())),
        "missing": missing,
    }


def write_shrunk(history: History, folder: Path) -> None:
    """Shrink a failing history and write it down."""
    small = shrink(history)
    title = [f"commit {commit()}, found by seed {history.scenario.seed}", *small.violations]
    path = folder / f"vopr-{history.scenario.seed}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(small.scenario.text(title), encoding="utf-8")
    except OSError as error:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{path} cannot be written: {error}") from error
    size = f"{len(small.scenario.requests)} requests and {len(small.scenario.faults)} faults"
    print(f"  shrunk to {size}: headway vopr --scenario {path}")
