"""``headway certs``: a development authority, and certificates that name roles."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.errors import invalid, require_between
from services.local.certificates import (
    AUTHORITY_DAYS,
    DAYS,
    issue,
    keep_certificates,
    make_authorities,
)
from services.runtime.identity.roles import ServiceRole, listed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = actions.add_parser("init", help="make an authority for services and one for clients")
    one = actions.add_parser("issue", help="issue one certificate")
    every = actions.add_parser(
        "all", help="make what is missing: authorities, and a certificate for each role; renew"
    )
    for each in (init, one, every):
        each.add_argument("folder", metavar="DIR", type=Path, help="folder of the authorities")
        each.add_argument("--days", type=int, help="days until it expires")
    one.add_argument("role", metavar="ROLE", help="gateway, scheduler, worker, … or client")
    one.add_argument("name", metavar="NAME", help="name of the process or person; its folder")
    for each in (one, every):
        each.add_argument("--cluster", default="default", help="name of the cluster (default)")
    one.add_argument("--host", action="append", default=[], help="name or address for outsiders")
    every.add_argument("--host", action="append", default=[], help="ROLE=HOST, repeatable")
    init.set_defaults(run=_init)
    one.set_defaults(run=_issue)
    every.set_defaults(run=_all)


def _init(args: argparse.Namespace) -> int:
    make_authorities(args.folder, days=_days(args, AUTHORITY_DAYS))
    print(f"made {args.folder / 'authority'}: keep its keys where no service runs")
    return 0


def _issue(args: argparse.Namespace) -> int:
    role, days = _role(args.role), _days(args, DAYS)
    options = issue(args.folder, role, args.name, cluster=args.cluster, hosts=args.host, days=days)
    print(" ".join(f"--{name.replace('_', '-')} {path}" for name, path in options.items()))
    return 0


def _all(args: argparse.Namespace) -> int:
    hosts: dict[ServiceRole, list[str]] = {}
    for text in args.host:
        role, equals, host = text.partition("=")
        if not equals or not host:
            raise invalid("--host", text, "ROLE=HOST")
        hosts.setdefault(_role(role), []).append(host)
    days = _days(args, DAYS)
    made = keep_certificates(args.folder, cluster=args.cluster, hosts=hosts, days=days)
    print(f"{args.folder}: issued {', '.join(made) or 'nothing, all are there'}")
    return 0


def _role(text: str) -> ServiceRole:
    if text not in list(ServiceRole):
        raise invalid("role", text, f"one of {listed(ServiceRole)}")
    return ServiceRole(text)


def _days(args: argparse.Namespace, default: int) -> int:
    days: int = default if args.days is None else args.days
    require_between("--days", days, 1, 36_500)
    return days
