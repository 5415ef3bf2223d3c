"""``python -m services.autoscaler``: one autoscaler."""

from __future__ import annotations

from services.autoscaler.actuators import make_actuator
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.keda import KedaScaler
from services.autoscaler.service import AutoscalerService
from services.runtime.config import load_config
from services.runtime.service import Runtime, run_service


async def build(runtime: Runtime[AutoscalerConfig]) -> AutoscalerService:
    """Return the service, with its RPCs registered."""
    service = AutoscalerService(runtime, make_actuator(runtime.config, runtime.store))
    runtime.server.add(service)
    config = runtime.config
    keda = KedaScaler(
        service.decisions,
        config.model_name,
        runtime.clock.now,
        staleness=config.interval + config.staleness,
    )
    runtime.server.add(keda)
    return service


def main() -> None:
    """Serve until a signal ends it."""
    run_service(load_config(AutoscalerConfig), build)


if __name__ == "__main__":
    main()
