"""The ``headway`` command of a checkout and of an installed wheel.

The rooms (``services``, ``bench``, ``cli``, ``protos`` and others) stand beside ``headway/`` in a
checkout. A wheel keeps them in ``headway_rooms/``, so that names as general as
``models`` never reach the site-packages of others. Only Headway's own processes put that folder on
their path.
"""

from __future__ import annotations

import importlib
import os
import sys

from headway.stubs import ROOMS


def enter_rooms() -> None:
    """Put the rooms first on the path of this process and of the processes that it starts."""
    sys.path.insert(0, ROOMS)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOMS, *([inherited] if inherited else [])])


def main() -> int:
    """Run the command line; return its exit status."""
    enter_rooms()
    return int(importlib.import_module("cli").main())


if __name__ == "__main__":
    sys.exit(main())
