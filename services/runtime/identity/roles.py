"""Roles of the processes of a cluster, and their names in certificates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headway.errors import Code, HeadwayError


class ServiceRole(StrEnum):
    """A kind of caller or of server."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    PREDICTOR = "predictor"
    AUTOSCALER = "autoscaler"
    SUPERVISOR = "supervisor"
    """The process of ``headway up``."""
    OPERATOR = "operator"
    """A person or tool that runs the cluster: ``headway explain``, KEDA."""
    CLIENT = "client"
    """Somebody whose requests the gateway serves."""


ROLE_DOMAIN = ".headway"
"""Ends the DNS names that certificates carry for their roles."""
PEERS = frozenset(ServiceRole) - {ServiceRole.CLIENT}


@dataclass(frozen=True, slots=True)
class Caller:
    """The other side of a call: its name, for messages, and its roles."""

    name: str
    roles: frozenset[ServiceRole]


def spiffe_id(cluster: str, role: ServiceRole, name: str) -> str:
    """Return the URI that names a process in its certificate (SPIFFE)."""
    return f"spiffe://{cluster}/{role}/{name}"


def read_spiffe_id(uri: str, cluster: str) -> Caller:
    """Return the caller that a URI names; PERMISSION_DENIED if it is not of this cluster."""
    scheme, _, rest = uri.partition("://")
    trust_domain, _, path = rest.partition("/")
    role, _, name = path.partition("/")
    if scheme != "spiffe" or trust_domain != cluster or role not in list(ServiceRole) or not name:
        expected = f"spiffe://{cluster}/ROLE/NAME with a role of {listed(ServiceRole)}"
        message = f"the certificate names {uri or 'nobody'!r}, not {expected}"
        raise HeadwayError(Code.PERMISSION_DENIED, message)
    return Caller(f"{role} {name}", frozenset({ServiceRole(role)}))


def server_name(cluster: str, role: ServiceRole) -> str:
    """Return the DNS name that every certificate of a role carries.

    Who dials a server checks this name, so that a certificate holds at any address.
    """
    return f"{role}.{cluster}{ROLE_DOMAIN}"


def listed(roles: Iterable[ServiceRole]) -> str:
    """Return the roles as text."""
    return ", ".join(sorted(roles))
