"""The tables in docs/architecture.md and docs/security.md are drawn from the code.

``HEADWAY_REWRITE=1 python -m pytest tests/test_docs_tables.py`` writes them anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from headway.core.gateway import streams
from headway.core.gateway.state import StreamStage
from headway.core.scheduler.books import TRANSITIONS
from headway.core.scheduler.reports import RECONCILE, Belief, Said
from headway.core.worker import lifecycle
from services.runtime.identity.access import WHO_MAY_CALL
from services.runtime.identity.roles import ServiceRole, listed

DOCS = Path(__file__).parents[1] / "docs"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def scheduler_places() -> str:
    places = ((a.__name__, event.value, b.__name__) for (a, event), b in TRANSITIONS.items())
    beliefs = (
        (belief.value, *(RECONCILE[belief, said].value for said in Said)) for belief in Belief
    )
    return "\n".join(
        [
            "A live request is in one of four places, and `headway/core/scheduler/books.py` alone",
            "moves it. The end of a request takes it out of any place.",
            "",
            table(("place", "event", "next place"), places),
            "",
            "A worker may report a request that is believed to be elsewhere, above all to a new",
            "leader. `headway/core/scheduler/reports.py` decides what follows. A request that",
            "nobody knows of is adopted where it is.",
            "",
            table(("believed", *(f"reported: {said.value}" for said in Said)), beliefs),
        ]
    )


def word(member: Enum) -> str:
    return member.name.lower().replace("_", " ")


def gateway_streams() -> str:
    introduction = (
        "The stream of an open request is at one of these stages, first `new`.",
        "`headway/core/gateway/streams.py` alone moves it. It ends at any stage: complete,",
        "refused, failed, at its deadline, or when its client leaves.",
    )
    return stages(introduction, "a stream that …", StreamStage, streams.TRANSITIONS)


def worker_lifecycle() -> str:
    introduction = (
        "A request on a worker is at one of these stages. `headway/core/worker/lifecycle.py`",
        "alone moves it.",
    )
    return stages(introduction, "a request that …", lifecycle.Stage, lifecycle.TRANSITIONS)


def stages(
    introduction: Iterable[str],
    meaning: str,
    kinds: Iterable[Enum],
    transitions: Mapping[tuple[Any, Any], Enum],
) -> str:
    """Return the stages with their meanings, and what leads from one to the next."""
    known = list(kinds)
    moves = sorted(transitions.items(), key=lambda move: known.index(move[0][0]))
    return "\n".join(
        [
            *introduction,
            "",
            table(("stage", meaning), ((word(s), s.value) for s in known)),
            "",
            table(
                ("stage", "event", "what happens", "next stage"),
                ((word(a), word(event), event.value, word(b)) for (a, event), b in moves),
            ),
        ]
    )


def access() -> str:
    head = ("method", "who may call it")
    everybody = frozenset(ServiceRole)
    rows = (
        (f"`{method[1:]}`", "anybody known" if roles == everybody else listed(roles))
        for method, roles in WHO_MAY_CALL.items()
    )
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "gateway streams": gateway_streams,
    "scheduler places": scheduler_places,
    "worker lifecycle": worker_lifecycle,
    "access": access,
}
PAGES = {"access": "security.md"}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_in_the_docs_is_that_of_the_code(name: str) -> None:
    path = DOCS / PAGES.get(name, "architecture.md")
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: generated -->\n", "<!-- end -->"
    drawn = f"{begin}{TABLES[name]()}\n{end}"
    if os.environ.get("HEADWAY_REWRITE"):
        found = re.sub(f"{re.escape(begin)}.*?{end}", lambda _: drawn, page, flags=re.DOTALL)
        path.write_text(found, encoding="utf-8")
        return
    assert drawn in page, "HEADWAY_REWRITE=1 writes it anew"
