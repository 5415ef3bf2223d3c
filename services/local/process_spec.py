"""The specification that a service's process is launched by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.local.forked import Order
from services.runtime.rooms import module_command


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A service: ``python -m services.<service> --service-id <service_id> <flags>``.

    With ``imports``, which may be none, it is a copy of the process that has imported these
    modules; None: it is executed. With ``command`` that instead, which then serves once
    ``address`` takes connections. ``role`` of a worker that may be scaled, for who scales it.
    ``membership``: what it is a member as while it waits to be told more, where that is not its
    service.
    """

    service: str
    service_id: str
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    address: str = ""
    role: str = ""
    membership: str = ""
    imports: tuple[str, ...] | None = None

    def command_line(self) -> list[str]:
        """Return the command to execute."""
        if self.command:
            return list(self.command)
        module = f"services.{self.service}"
        return module_command(module, "--service-id", self.service_id, *self.flags)

    def order(self, environment: Mapping[str, str]) -> Order:
        """Return the order of a copy."""
        argv = (self.service_id, *self.flags)
        return Order(self.service, argv, self.imports or (), environment)
