"""The ``headway`` command: one file per subcommand, imported when that one is called."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from headway.errors import Code, HeadwayError

COMMANDS = {
    "up": "start the whole cluster on this machine",
    "top": "the cluster and its requests, in the terminal",
    "service": "run one service alone",
    "picker": "an endpoint picker for Envoy and other gateways, in front of stock vLLM",
    "key": "make an API key and the line that lets it in",
    "certs": "make an authority, and the certificates of services and clients",
    "policies": "list the policies that flags can name",
    "profile": "what a deployment costs: list, show, run (measure), check (against live runs)",
    "bench": "measure servers, the gateway, the engine, the simulator, decisions",
    "simulate": "run a scenario on virtual time",
    "plan": "the cheapest instances that keep an SLO under a load",
    "explain": "why a request went where it went",
    "trace": "what requests went through, for Perfetto",
    "demo": "a burst and an overload under two presets, side by side",
    "reproduce": "check the papers' claims in the simulator",
    "chaos": "faults on live processes under load; every token is compared",
    "fuzz": "damaged inputs for the gateway, the wire, the cores and the store",
    "vopr": "simulated clusters under faults; every token and block is checked",
    "predictor": "collect hidden states, train a predictor of remaining lengths",
}
_HELPED_BY_A_SERVICE = {"picker"}
"""Commands whose ``--help`` is that of the service that they become."""
_MOST_SHOWN = 300
"""Characters of the system's own words for what fails."""
_WRONG_CALLS = (Code.INVALID_ARGUMENT, Code.NOT_FOUND)


class Command(argparse.ArgumentParser):
    """A parser that refuses in one sentence; ``module`` adds its options once it is called."""

    def __init__(self, *args: Any, module: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.allow_abbrev = False
        self._module = module

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the options are listed; exit with 2."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists what there is\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the module's options, then parse as any parser does."""
        if self._module:
            module, self._module = importlib.import_module(self._module), ""
            module.add_options(self)
        return super().parse_known_args(args, namespace)


def add_commands(
    parser: argparse.ArgumentParser, room: str, commands: Mapping[str, str], dest: str, metavar: str
) -> None:
    """Register subcommands by name and help text; each has a module of its name in ``room``."""
    subparsers = parser.add_subparsers(dest=dest, required=True, metavar=metavar)
    for name, says in commands.items():
        add_help = name not in _HELPED_BY_A_SERVICE
        subparsers.add_parser(name, help=says, module=f"{room}.{name}", add_help=add_help)


def command_line() -> Command:
    """Return the command's parser."""
    parser = Command(
        prog="headway",
        description="Serves large language models so that the slowest request is still fast.",
    )
    parser.add_argument("--version", action="version", version=f"headway {_version()}")
    add_commands(parser, "cli", COMMANDS, "command", "COMMAND")
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("headway")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is run as it lies there
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit status: 2 for a wrong call, 1 for any other failure."""
    parser = command_line()
    args, unknown = parser.parse_known_args(argv)
    if unknown and not hasattr(args, "service_flags"):
        parser.prog += f" {args.command}"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.service_flags = unknown
    try:
        _refuse_outputs(args)
        return int(args.run(args))
    except HeadwayError as error:
        print(f"headway: {error.message}", file=sys.stderr)
        return 2 if error.code in _WRONG_CALLS else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`; what is left to print goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a name that is too long, a file of another user
        print(f"headway: {str(error)[:_MOST_SHOWN]}", file=sys.stderr)
        return 1


def _refuse_outputs(args: argparse.Namespace) -> None:
    """Refuse, before any work, a file that cannot be written or plots without matplotlib."""
    from results.output import refuse_unwritable, require_extra

    if getattr(args, "json", None) is not None:
        refuse_unwritable(args.json)
    if getattr(args, "plots", None) is not None:
        require_extra("matplotlib", "--plots")
