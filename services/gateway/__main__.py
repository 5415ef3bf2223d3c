"""``python -m services.gateway``: one gateway."""

from __future__ import annotations

from services.gateway.config import GatewayConfig
from services.runtime.config import load_config


def main() -> None:
    """Serve until a signal ends it."""
    config = load_config(GatewayConfig)  # a wrong flag is refused before the rest is imported

    from services.gateway.service import build
    from services.runtime.service import run_service

    run_service(config, build)


if __name__ == "__main__":
    main()
