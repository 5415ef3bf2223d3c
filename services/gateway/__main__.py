"""``python -m services.gateway``: one gateway."""

from __future__ import annotations

from services.gateway.config import GatewayConfig
from services.gateway.service import build
from services.runtime.config import load_config
from services.runtime.service import run_service


def main() -> None:
    """Serve until a signal ends it."""
    run_service(load_config(GatewayConfig), build)


if __name__ == "__main__":
    main()
