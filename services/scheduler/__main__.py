"""``python -m services.scheduler``: one scheduler."""

from __future__ import annotations

from services.runtime.config import load_config
from services.runtime.service import Runtime, run_service
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import SchedulerService


async def build(runtime: Runtime[SchedulerConfig]) -> SchedulerService:
    """Return the service, with its RPCs registered."""
    service = SchedulerService(runtime, runtime.metrics)
    runtime.server.add(service.links)
    return service


def main() -> None:
    """Serve until a signal ends it."""
    run_service(load_config(SchedulerConfig), build)


if __name__ == "__main__":
    main()
