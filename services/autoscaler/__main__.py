"""``python -m services.autoscaler``: one autoscaler."""

from __future__ import annotations

from services.autoscaler.config import AutoscalerConfig
from services.runtime.config import load_config


def main() -> None:
    """Serve until a signal ends it."""
    config = load_config(AutoscalerConfig)  # a wrong flag is refused before the rest is imported

    from services.autoscaler.service import build
    from services.runtime.service import run_service

    run_service(config, build)


if __name__ == "__main__":
    main()
