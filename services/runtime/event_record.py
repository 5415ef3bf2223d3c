"""A recording of all events and actions of a core, and its replay.

A core is a function of its events and the time, so a replay must decide the same. Records hold
pickled objects: only read files that you recorded yourself.
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
from headway.errors import invalid
from services.runtime.span_record import SUFFIX, SpanRecord

_SUFFIX = "events"


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """Return a read-only view: the type itself has no name that pickle finds."""
    return MappingProxyType(mapping)


copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))


class EventRecord:
    """A file with the core's initial state, then one record per step."""

    def __init__(self, path: Path, core: Core[Any, Any]) -> None:
        self._file: IO[bytes] = path.open("wb")
        pickle.dump(core, self._file)

    def note(self, event: object, now: float, actions: Sequence[object]) -> None:
        """Record an event (None for a wake-up) and the text of its actions."""
        pickle.dump((event, now, repr(actions)), self._file)

    def close(self) -> None:
        """Flush everything to disk and close the file."""
        self._file.close()


class _Folder:
    """The folder in which this process records its cores, if any."""

    path: Path | None = None
    is_of_spans = False
    service_id = ""
    numbers = count(1)


def configure(events: str, service_id: str, spans: str = "") -> None:
    """Record every core of this process from now on; an empty folder disables that.

    ``events``: everything, for replay. ``spans``: instants alone, if no events are recorded.
    INVALID_ARGUMENT for a folder that cannot be made.
    """
    folder = events or spans
    _Folder.path = Path(folder) if folder else None
    _Folder.is_of_spans = not events
    _Folder.service_id = service_id
    if _Folder.path is not None:
        try:
            _Folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            option = "record_events" if events else "record_spans"
            raise invalid(
                option, folder, f"a folder that can be made ({error.strerror})"
            ) from error


def record_of(core: Core[Any, Any]) -> EventRecord | SpanRecord | None:
    """Open a file for a new core; None if nothing is recorded."""
    if _Folder.path is None:
        return None
    name = f"{_Folder.service_id}-{next(_Folder.numbers)}"
    if _Folder.is_of_spans:
        return SpanRecord(_Folder.path / f"{name}.{SUFFIX}", _Folder.service_id)
    return EventRecord(_Folder.path / f"{name}.{_SUFFIX}", core)


@dataclass(frozen=True, slots=True)
class Difference:
    """A step at which the replayed core decided differently."""

    step: int
    event: object
    recorded: str
    replayed: str


def replay(path: Path) -> Iterator[Difference | None]:
    """Replay a record; yield for each step the difference, or None if there is none.

    A record that breaks off within a step, such as that of a killed process, ends there.
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
