"""``python -m proof.mutants``: how many mutations the nearest tests, or seeds, catch."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from proof.mutants.apply import CAUGHT, SURVIVED
from proof.mutants.mutation import MUTATIONS, Mutation
from proof.vopr.campaign import parse_seeds

_PATIENCE = 300.0
"""Seconds after which what has not ended counts as caught: a mutation may make a loop endless."""
_ROOT = Path(__file__).resolve().parents[2]


def is_caught(mutation: Mutation, *what: str, patience: float = _PATIENCE) -> bool:
    """Return whether a process with the mutation fails, or does not end within ``patience`` s.

    RuntimeError if it cannot even run.
    """
    call = [sys.executable, "-m", "proof.mutants.apply", mutation.name, *what]
    try:
        done = subprocess.run(
            call, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (CAUGHT, SURVIVED):
        raise RuntimeError(f"{mutation.name}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.returncode == CAUGHT


def main() -> int:
    """Print each mutation's fate and the score; return 1 if one has survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations by name; default: all")
    parser.add_argument("--seeds", metavar="A..B", help="histories of vopr instead of tests")
    args = parser.parse_args()
    chosen = [each for each in MUTATIONS if not args.names or each.name in args.names]
    num_caught = 0
    for mutation in chosen:
        if args.seeds is None:
            caught = is_caught(mutation, "tests", *mutation.tests)
        else:
            seeds = parse_seeds(args.seeds)
            caught = is_caught(mutation, "seeds", str(seeds.start), str(seeds.stop))
        num_caught += caught
        print(f"{'caught' if caught else 'SURVIVED':<9} {mutation.name}", flush=True)
    print(f"{num_caught} of {len(chosen)} are caught")
    return int(num_caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
