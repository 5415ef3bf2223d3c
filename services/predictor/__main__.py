"""``python -m services.predictor``: one predictor."""

from __future__ import annotations

from services.predictor.config import PredictorConfig
from services.predictor.service import PredictorService
from services.runtime.config import load_config
from services.runtime.service import Runtime, run_service


async def build(runtime: Runtime[PredictorConfig]) -> PredictorService:
    """Return the service, with its RPCs registered."""
    service = PredictorService(runtime)
    runtime.server.add(service)
    return service


def main() -> None:
    """Serve until a signal ends it."""
    run_service(load_config(PredictorConfig), build)


if __name__ == "__main__":
    main()
