"""One answer to a policy question: what a registry holds under a name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from headway.errors import invalid


@dataclass(frozen=True, slots=True)
class Answer:
    """``make(params)`` makes the policy, or ``make()`` where it has no parameters.

    ``reference``: the paper and its algorithm, section or equation, or the system it is from.
    ``params``: the frozen dataclass of its parameters, which refuses what is out of range.
    """

    make: Callable[..., Any]
    reference: str
    params: type | None = None

    @property
    def description(self) -> str:
        """One line: what its docstring says first."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    def parameters(self) -> Mapping[str, object]:
        """Its parameters by name, with their defaults."""
        return {f.name: f.default for f in fields(self.params)} if self.params else {}

    def build(self, name: str, given: Mapping[str, object]) -> Any:
        """The policy with these parameters; HeadwayError for one that it does not have."""
        params = self.checked(name, given)
        return self.make() if params is None else self.make(params)

    def checked(self, name: str, given: Mapping[str, object]) -> Any:
        """Its parameters, None where it has none; HeadwayError as ``build``."""
        known = self.parameters()
        for param in given:
            if param not in known:
                choices = ", ".join(known) or "left out: there are none"
                raise invalid(f"{name} parameter", param, choices)
        return self.params(**given) if self.params else None
