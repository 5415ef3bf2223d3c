"""Bases by which policies declare that they read constants of their pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headway.cost.costs import Constant, Costs, Source


class CostReader(ABC):
    """A policy that decides by what passes, prompt tokens or swaps cost.

    It is told the costs when it is made and whenever they change. A parameter that was given
    stands over them.
    """

    @abstractmethod
    def learn(self, costs: Costs) -> None:
        """Decide by these costs from now on."""

    @abstractmethod
    def constants(self) -> Sequence[Constant]:
        """Return the constants that decisions use now."""


class GammaReader(ABC):
    """A policy outside the workers that uses the pool's γ."""

    @abstractmethod
    def tune(self, gamma: float, source: Source) -> None:
        """Use this γ from now on, 1/s."""


def chosen(
    name: str, given: float | None, known: float | None, source: Source, default: float
) -> Constant:
    """Return a constant as it was given, else as ``source`` knows it, else by default."""
    if given is not None:
        return Constant(name, given, Source.GIVEN)
    if known is not None:
        return Constant(name, known, source)
    return Constant(name, default, Source.DEFAULT)


def teach(policy: object, costs: Costs) -> None:
    """Tell a policy the costs, if it reads them."""
    if isinstance(policy, CostReader):
        policy.learn(costs)


def constants_of(*policies: object) -> tuple[Constant, ...]:
    """Return the constants that decisions of these policies use now, each once."""
    readers = (policy for policy in policies if isinstance(policy, CostReader))
    return tuple(dict.fromkeys(each for reader in readers for each in reader.constants()))
