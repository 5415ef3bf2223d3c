"""A pass time to fit and to compare with."""

from __future__ import annotations

from headway.cost.pass_time import PassTime

TRUE = PassTime(0.012, 71e-6, 1e-4, 1e-7, 2e-9)
