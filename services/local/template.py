"""``python -m services.local.template FD MODULE…``: imports what services need, and forks them.

Importing torch and transformers takes seconds of CPU, and several of a cluster's processes need
them. This process imports, and each service is a copy of it that has imported everything already.

No copy can deadlock: ``fork`` copies one thread, and a lock that another thread held would stay
locked for ever. This process has one thread, looks at that before every fork, and refuses
otherwise. Neither gRPC, an event loop nor OpenMP has begun in it: all of them begin in a service.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from select import select
from typing import Any, NoReturn

from services.local.tether import end_with

MOST_BYTES = 200_000
"""Of an order: what the system takes in one message."""
_PR_SET_NAME = 15


def main(connection: socket.socket, ahead: Sequence[str]) -> None:
    """Fork a service for each order, until the other end is closed.

    Between orders it imports the modules ``ahead``, one after the other. An order is a JSON object
    (``forked.Order``) with its log's descriptor; the answer is another: the ``pid``, or ``refused``
    with the reason.
    """
    gc.disable()  # what is imported stays
    waiting = deque(ahead)
    while True:
        while waiting and not select([connection], [], [], 0)[0]:
            _import(waiting.popleft())
        text, logs, _, _ = socket.recv_fds(connection, MOST_BYTES, 1)
        if not text:
            return
        _take_order(connection, json.loads(text), logs[0])
        os.close(logs[0])


def _take_order(connection: socket.socket, order: dict[str, Any], log: int) -> None:
    for module in (f"services.{order['service']}.__main__", *order["imports"]):
        _import(module)
    sys.stdout.flush()
    gc.freeze()  # else a service's first collection would write to every page that is shared
    if len(os.listdir("/proc/self/task")) > 1:
        connection.send(json.dumps({"refused": "a module has started a thread"}).encode())
        return
    middle = os.fork()
    if not middle:
        # between us and the service, and gone at once: the kernel then gives the service to the
        # nearest process that takes orphans, which is the supervisor
        middle, service = os.getpid(), os.fork()
        if not service:
            _serve(connection, order, log, middle)
        connection.send(json.dumps({"pid": service}).encode())
        os._exit(0)
    os.waitpid(middle, 0)


def _import(module: str) -> None:
    try:
        import_module(module)
    except Exception:  # the service says so in its own log
        traceback.print_exc()


def _serve(connection: socket.socket, order: dict[str, Any], log: int, middle: int) -> NoReturn:
    """Become the service that was ordered."""
    os.setsid()  # Ctrl-C is for the supervisor: it drains in order
    while os.getppid() == middle:
        time.sleep(0.001)
    end_with(order["supervisor"])
    _take_streams(log)
    connection.close()
    _name_process(order["argv"][0])
    os.environ.clear()
    os.environ.update(order["environment"])
    gc.enable()
    service = import_module(f"services.{order['service']}.__main__")
    sys.argv = [str(service.__file__), "--service-id", *order["argv"]]
    os._exit(_status_of(service))


def _take_streams(log: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)


def _name_process(name: str) -> None:
    """Let ``top`` and ``ps -o comm`` show the service's id."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def _status_of(service: Any) -> int:
    """Run a service's module; return the exit status that Python would give."""
    try:
        service.main()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def run(arguments: Sequence[str]) -> None:
    """Take orders at the inherited descriptor; write what goes wrong before a fork to the log."""
    connection = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(connection.fileno(), False)
    Path("/proc/self/comm").write_text("headway")
    main(connection, arguments[1:])


if __name__ == "__main__":
    run(sys.argv[1:])
