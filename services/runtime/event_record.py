"""Everything that a core is told and answers, in a file, and the same again from that file.

A core is a function of its events and of the time: told the same again, it must decide the same.
A record holds pickled objects of our own: read only what you have recorded yourself.
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from headway.core.protocol import Core

_SUFFIX = "events"

copyreg.pickle(MappingProxyType, lambda mapping: (MappingProxyType, (dict(mapping),)))


class EventRecord:
    """The core as it is now, then a record a step."""

    def __init__(self, path: Path, core: Core[Any, Any]) -> None:
        self._file: IO[bytes] = path.open("wb")
        pickle.dump(core, self._file)

    def told(self, event: object, now: float, actions: Sequence[object]) -> None:
        """An event, None for the passing of time; what came of it is kept as text."""
        pickle.dump((event, now, repr(actions)), self._file)

    def close(self) -> None:
        """All of it is on disk."""
        self._file.close()


class _Folder:
    """Where this process records its cores, if anywhere."""

    path: Path | None = None
    service_id = ""
    numbers = count(1)


def configure(folder: str, service_id: str) -> None:
    """Record every core of this process from now on; nothing for no folder."""
    _Folder.path = Path(folder) if folder else None
    _Folder.service_id = service_id
    if _Folder.path is not None:
        _Folder.path.mkdir(parents=True, exist_ok=True)


def record_of(core: Core[Any, Any]) -> EventRecord | None:
    """A file of its own for a core that begins, None where nothing is recorded."""
    if _Folder.path is None:
        return None
    name = f"{_Folder.service_id}-{next(_Folder.numbers)}.{_SUFFIX}"
    return EventRecord(_Folder.path / name, core)


@dataclass(frozen=True, slots=True)
class Difference:
    """A step at which the core decided otherwise."""

    step: int
    event: object
    recorded: str
    replayed: str


def replay(path: Path) -> Iterator[Difference | None]:
    """Tell the recorded core the same again: a step each, None where it decides the same.

    A record that ends in the middle of a step, as that of a killed process may, ends there.
    """
    with path.open("rb") as file:
        core: Core[Any, Any] = pickle.load(file)
        for step in count(1):
            try:
                event, now, recorded = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return
            actions = core.wake(now=now) if event is None else core.handle(event, now=now)
            replayed = repr(actions)
            same = replayed == recorded
            yield None if same else Difference(step, event, recorded, replayed)
