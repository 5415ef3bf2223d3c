"""Named failpoints: places between saving something and acting on it, where a test may strike.

``HEADWAY_FAILPOINTS="scheduler.journal.saved=exit:0.1;worker.kv.acked=sleep:2*3"`` arms two. Each
is ``name=action[:argument][*count]``:

- ``exit[:chance]`` ends the process at once, as SIGKILL would (exit status 137);
- ``sleep:seconds`` lets the whole process stand still, as a long pause of the machine would.

``count`` is how often it strikes at most. Without the variable a failpoint costs one look into an
empty dictionary. ``headway chaos --failpoints`` lists them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from headway.errors import Code, HeadwayError
from services.runtime.logs import get_logger

VARIABLE = "HEADWAY_FAILPOINTS"
_EXIT_STATUS = 137
_FORM = "name=exit[:chance][*count] or name=sleep:seconds[*count], with ; between two"

FAILPOINTS: Mapping[str, str] = {
    "gateway.request.handed": "a request is on its way to the scheduler, nothing is answered",
    "gateway.tokens.taken": "a worker's tokens are accepted, and not yet delivered",
    "scheduler.lease.taken": "the lease is won, and nobody has been told",
    "scheduler.order.sent": "an order is on its way to a worker, and not in the journal",
    "scheduler.journal.saved": "the journal is written, and later changes are not",
    "worker.dispatch.taken": "a scheduler's order has arrived, and nothing has been done",
    "worker.tokens.queued": "tokens wait for their gateway, and the pass is not reported",
    "worker.kv.arrived": "another worker's KV is written here, and not acknowledged",
    "worker.kv.acked": "the target has acknowledged the KV, and its blocks are held here",
    "predictor.version.saved": "a version's weights are written, and its config is not",
    "autoscaler.targets.decided": "targets are decided, and not in the store",
    "member.joined": "the membership is in the store, and no other service has noticed",
}
"""What is done, and what is not, by name."""


@dataclass(slots=True)
class _Strike:
    action: str
    argument: float
    left: float


_armed: dict[str, _Strike] = {}  # filled once, at a process's start


def arm(text: str) -> None:
    """Arm the failpoints of the variable's text; HeadwayError where it is wrong."""
    _armed.clear()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, strike = _read(part)
        _armed[name] = strike


def arm_from_environment() -> None:
    """Arm what the environment asks for."""
    arm(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
    """Strike here, if this failpoint is armed."""
    if _armed and name in _armed:
        _strike(name, _armed[name])


def _strike(name: str, strike: _Strike) -> None:
    if strike.left <= 0 or (strike.action == "exit" and random.random() >= strike.argument):
        return
    strike.left -= 1
    get_logger().warning("failpoint", name=name, action=strike.action)
    if strike.action == "exit":
        os._exit(_EXIT_STATUS)
    time.sleep(strike.argument)


def _read(part: str) -> tuple[str, _Strike]:
    name, _, rest = part.partition("=")
    if name not in FAILPOINTS:
        raise _wrong(part, f"{name!r} is no failpoint; there are {', '.join(FAILPOINTS)}")
    rest, star, count = rest.partition("*")
    action, colon, argument = rest.partition(":")
    try:
        left = float(int(count)) if star else inf
        number = float(argument) if colon else 1.0
    except ValueError:
        raise _wrong(part, f"it is not of the form {_FORM}") from None
    if action == "exit" and 0 < number <= 1 and left >= 1:
        return name, _Strike(action, number, left)
    if action == "sleep" and colon and 0 < number <= 3600 and left >= 1:
        return name, _Strike(action, number, left)
    raise _wrong(part, f"it is not of the form {_FORM}; a chance is over 0 and at most 1")


def _wrong(part: str, why: str) -> HeadwayError:
    return HeadwayError(Code.INVALID_ARGUMENT, f"{VARIABLE} has {part!r}: {why}")
