"""``headway up --metrics-port``: a port for every process, for those that come later, too."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.errors import Code, HeadwayError

if TYPE_CHECKING:
    from services.local.process_spec import ProcessSpec

FLAG = "--metrics-listen"
_HOST = "127.0.0.1"
_MOST_PORTS = 1024  # that are looked at from the first one on


def in_order(specs: list[ProcessSpec], port: int) -> list[ProcessSpec]:
    """Return a port for each; the gateway, which shows them to clients too, first. 0: none."""
    if not port:
        return specs
    return [_listening(spec, port + place) for place, spec in enumerate(specs)]


def beside(spec: ProcessSpec, others: Iterable[ProcessSpec], port: int) -> ProcessSpec:
    """Return the first port from ``port`` on that is free and that none of the others has.

    One that is told what to be (it stood by) goes on listening where it does. UNAVAILABLE where
    no port is left.
    """
    if not port:
        return spec
    addresses = {other.service_id: address_of(other) for other in others}
    if addresses.get(spec.service_id):
        return replace(spec, flags=(*spec.flags, FLAG, addresses[spec.service_id]))
    taken = set(addresses.values())
    for number in range(port, min(port + _MOST_PORTS, 65_536)):
        if f"{_HOST}:{number}" not in taken and _is_free(number):
            return _listening(spec, number)
    message = f"no port is free for the metrics of {spec.service_id}: choose another --metrics-port"
    raise HeadwayError(Code.UNAVAILABLE, message)


def address_of(spec: ProcessSpec) -> str:
    """Return the address of a process's metrics, "" where it shows none."""
    flags = spec.flags
    return flags[flags.index(FLAG) + 1] if FLAG in flags else ""


def _listening(spec: ProcessSpec, port: int) -> ProcessSpec:
    return replace(spec, flags=(*spec.flags, FLAG, f"{_HOST}:{port}"))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
