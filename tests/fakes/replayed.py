"""Replays one record in a process of its own and says what differed: the test's other half."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from services.runtime.event_record import replay


def main(path: str) -> None:
    """Print the number of steps and the first difference as JSON."""
    steps, first = 0, ""
    for difference in replay(Path(path)):
        steps += 1
        if difference is not None and not first:
            first = (
                f"step {difference.step}, {str(difference.event)[:300]}: recorded "
                f"{difference.recorded[:1000]}, replayed {difference.replayed[:1000]}"
            )
    sys.stdout.write(json.dumps({"steps": steps, "difference": first}))


if __name__ == "__main__":
    main(sys.argv[1])
