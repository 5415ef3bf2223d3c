"""``python -m services.scheduler``: one scheduler."""

from __future__ import annotations

from services.runtime.config import load_config
from services.scheduler.config import SchedulerConfig


def main() -> None:
    """Serve until a signal ends it."""
    config = load_config(SchedulerConfig)  # a wrong flag is refused before the rest is imported

    from services.runtime.service import run_service
    from services.scheduler.service import build

    run_service(config, build)


if __name__ == "__main__":
    main()
