"""Python's search for cyclic garbage during a run: simulations make hardly any."""

from __future__ import annotations

import gc
from types import TracebackType

_SELDOM = 1_000_000
"""New objects between two searches, instead of Python's 700."""


class SeldomCollected:
    """A context in which cyclic garbage is searched for seldom, and not among what there was."""

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        self._freezes = not gc.get_freeze_count()  # else who does it ends it
        if self._freezes:
            gc.freeze()
        gc.set_threshold(_SELDOM, *self._before[1:])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gc.set_threshold(*self._before)
        if self._freezes:
            gc.unfreeze()
