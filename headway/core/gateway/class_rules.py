"""The class of a request: which one it asks for, and which one its key may have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headway.errors import Code, HeadwayError
from headway.service_class import ServiceClass, ServiceClasses


class ClassRules:
    """The rules for requests that ask for a class.

    ``longest``: seconds that a deadline may have of a class that no operator has given the key;
    None: as long as the class says.
    """

    def __init__(self, classes: ServiceClasses, longest: float | None = None) -> None:
        self._classes = classes
        self._longest = longest

    def find(
        self, name: str, priority: int | None, *, own: str, allowed: Collection[str]
    ) -> ServiceClass | None:
        """Return the class of a request; None: it has none.

        It asks by ``name``, or else by vLLM's ``priority``. ``own``: its key's, if it asks for
        none. ``allowed``: those that it may ask for besides; (): any. PERMISSION_DENIED for
        another, INVALID_ARGUMENT for one that there is not.
        """
        classes, may = self._classes, {*allowed, own} - {""} if allowed else ()
        service_class = classes.find(name or own or classes.default)
        if name and may and name not in may:
            message = f"class is {name!r}; this key may ask for {', '.join(sorted(may))}"
            raise HeadwayError(Code.PERMISSION_DENIED, message, param="class")
        if not name:
            service_class = self._nearest(service_class, priority, may)
        return self._bounded(service_class, (own, *allowed))

    def _nearest(
        self, service: ServiceClass | None, priority: int | None, may: Collection[str]
    ) -> ServiceClass | None:
        """Return the class of a priority, or ``service``, or the nearest to it that it may be."""
        if priority is None and service is not None and may and service.name not in may:
            priority = service.priority  # nobody asked for the file's default
        return service if priority is None else self._classes.of_priority(priority, may)

    def _bounded(self, service: ServiceClass | None, given: Collection[str]) -> ServiceClass | None:
        """Return the class, with no longer a deadline than anybody may choose."""
        longest = self._longest
        if service is None or service.deadline is None or longest is None or service.name in given:
            return service
        return replace(service, deadline=min(service.deadline, longest))
