"""An answer to a policy question: its name, its parameters and its source."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from headway.errors import invalid

_IN_WORDS = MappingProxyType(
    {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        float | None: "a number or null",
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A policy by its ``name``; the file that holds it ends with ``ANSWER = Answer(...)``.

    ``make(params)`` makes the policy, or ``make()`` where it has no parameters.
    ``reference``: the paper and its algorithm, section or equation, or the system it is from.
    ``params``: the frozen dataclass of its parameters, which refuses what is out of range.
    ``simulated_as``: the answer that stands for it where there are no hidden states, "" for none.
    ``instead``: of one that decides by what only the simulator knows, the answers to choose live.
    ``left_out``: the part of it that only the simulator performs; a live service says so.
    """

    name: str
    make: Callable[..., Any]
    reference: str
    params: type | None = None
    simulated_as: str | None = None
    instead: str = ""
    left_out: str = ""

    @property
    def description(self) -> str:
        """The first line of the policy's docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @property
    def reads_profile(self) -> bool:
        """True if it has to be told what an instance carries (a ``profile`` parameter)."""
        return "profile" in self.parameters()

    def parameters(self) -> Mapping[str, object]:
        """Return its parameters by name, with their defaults."""
        return {f.name: f.default for f in fields(self.params)} if self.params else {}

    def build(self, name: str, given: Mapping[str, object]) -> Any:
        """Make the policy with these parameters; HeadwayError for one that it does not have."""
        params = self.checked(name, given)
        return self.make() if params is None else self.make(params)

    def checked(self, name: str, given: Mapping[str, object]) -> Any:
        """Return its parameters, None where it has none; HeadwayError as ``build``."""
        values = self.typed(name, given)
        return self.params(**values) if self.params else None

    def typed(self, name: str, given: Mapping[str, object]) -> dict[str, Any]:
        """Return the given parameters with texts read as the type of their field.

        HeadwayError for a parameter that it does not have, or a text that is no such value.
        """
        known = self.parameters()
        for param in given:
            if param not in known:
                choices = ", ".join(known) or "left out: there are none"
                raise invalid(f"{name} parameter", param, choices)
        texts = {param for param, value in given.items() if isinstance(value, str)}
        hints = get_type_hints(self.params) if texts else {}
        return {
            param: _read(f"{name} {param}", str(value), hints[param]) if param in texts else value
            for param, value in given.items()
        }


def _read(name: str, text: str, hint: Any) -> object:
    """Return the value of type ``hint`` that a text says; HeadwayError where it says none."""
    if str in (hint, *get_args(hint)):
        return text
    from pydantic import TypeAdapter, ValidationError  # slow to import, and seldom needed

    adapter = TypeAdapter(hint, config={"arbitrary_types_allowed": True})
    for read in (adapter.validate_json, adapter.validate_python):
        try:
            return read(text)
        except ValidationError:
            continue
    raise invalid(name, text, _IN_WORDS.get(hint, f"a value of type {hint}"))
