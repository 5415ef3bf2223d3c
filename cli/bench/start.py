"""``headway bench start``: from the command to the first answer."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from bench.start import Starting, time_start
from bench.vllm.server import EngineLimits, Server
from cli.options import add_json, add_model, require_ranges
from results.output import make_table, write_json
from services.local.store import free_port
from services.runtime.rooms import child_environment, module_command


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts `headway up`, and a plain `vllm serve` where vLLM is installed in the same "
        "environment, one after the other, asks for one token and stops it. CPU seconds are those "
        "of all processes; they hardly depend on what else the machine does."
    )
    add_model(parser)
    add = parser.add_argument
    add("--times", type=int, default=2, metavar="N", help="starts of each (2; the first is cold)")
    add("--within", type=float, default=300.0, metavar="S", help="the longest start (300)")
    add("--log-dir", type=Path, default=Path("run/start"), help="the servers' logs (run/start)")
    add_json(parser, "write every start's seconds")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start each as often as asked; print a row for each start."""
    require_ranges(args, times=(1, 100), within=(1.0, 3600.0))
    args.log_dir.mkdir(parents=True, exist_ok=True)
    makers = [_headway, *([_vllm] if find_spec("vllm") else [])]
    starts = [
        time_start(make(args.model, args.log_dir), args.log_dir, args.within)
        for _ in range(args.times)
        for make in makers
    ]
    rows = [(each.name, f"{each.wall:.1f}", f"{each.cpu:.1f}") for each in starts]
    Console().print(make_table(("server", "wall s", "CPU s"), rows))
    write_json(args.json, [asdict(each) for each in starts])
    return 0


def _headway(model: str, folder: Path) -> Starting:
    port = free_port(2)
    flags = ("--model", model, "--port", str(port), "--log-dir", str(folder / "up"))
    command = module_command("cli", "up", *flags)
    url = f"http://127.0.0.1:{port}"
    return Starting("headway up", command, url, Path(model).name, child_environment())


def _vllm(model: str, folder: Path) -> Starting:
    port = free_port()
    server = Server(model, EngineLimits(max_running=64))
    url = f"http://127.0.0.1:{port}"
    return Starting("vllm serve", server.command(port), url, Path(model).name, server.variables())
