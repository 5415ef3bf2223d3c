"""A run of ``headway bench gateway``: every gateway in turn, round after round."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bench.cluster.processes import cpu_seconds
from bench.gateway.contenders import OURS, PATH, Contender, GatewayProcesses
from bench.gateway.peers import find_peers
from bench.gateway.report import Figures, middle, print_comparison, write_comparison
from bench.serve.closed_loop import Loop, run_loop
from headway.errors import HeadwayError
from headway.metrics import percentile
from results.output import num_cores

_SETTLE = 1.0  # seconds of load before the first round


async def compare(args: Namespace) -> int:
    """Return the exit status."""
    console = Console()
    peers_dir = args.peers_dir.expanduser()
    peers, missing = find_peers(
        args.peers, peers_dir, installs=args.install_peers, say=console.print
    )
    rounds: dict[str, list[Figures]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-bench-")))
        stage = GatewayProcesses(stack, folder, args.delay_ms)
        ours = OURS if args.records else ("headway",)
        contenders = [await stage.backend()]
        contenders += [await stage.headway(args.model, name) for name in ours]
        for peer in peers:
            try:
                contenders.append(await stage.peer(peer, contenders[0], peers_dir))
            except HeadwayError as error:
                missing[peer.name] = error.message
        for contender in contenders:
            rounds[contender.name] = []
            await _requests(contender, args.streams, 1, False, _SETTLE)
        await _all_rounds(args, console, contenders, rounds, missing)
    medians = {name: middle(each) for name, each in rounds.items() if each}
    print_comparison(console, medians, missing, _setting(args))
    if args.json is not None:
        write_comparison(args.json, _setting(args), medians, rounds, missing)
        console.print(f"written: {args.json}", markup=False)
    return 0


async def _all_rounds(
    args: Namespace,
    console: Console,
    contenders: Sequence[Contender],
    rounds: Mapping[str, list[Figures]],
    missing: dict[str, str],
) -> None:
    """Fill ``rounds``, each round beginning with another gateway; drop a peer that fails."""
    left = list(contenders)
    for number in range(args.rounds):
        turn = number % len(left)
        for contender in [*left[turn:], *left[:turn]]:
            console.print(f"round {number + 1} of {args.rounds}: {contender.name}", style="dim")
            try:
                rounds[contender.name].append(await _measure(contender, args))
            except HeadwayError as error:
                if contender.name == "none" or contender.name in OURS:
                    raise
                missing[contender.name] = f"failed under load: {error.message}"
                rounds[contender.name].clear()
                left.remove(contender)


async def _measure(contender: Contender, args: Namespace) -> Figures:
    """Measure one gateway."""
    alone, _ = await _requests(contender, 1, 1, False, args.seconds)
    times = sorted(alone.times)
    short, short_cpu = await _requests(contender, args.streams, 1, False, args.seconds)
    long, long_cpu = await _requests(contender, args.streams, args.tokens, True, args.seconds)
    per_request = per_token = None
    if short_cpu is not None and long_cpu is not None:
        per_request = short_cpu / len(short.times)
        more_tokens = max(args.tokens - 1, 1)
        per_token = max(long_cpu / len(long.times) - per_request, 0.0) / more_tokens
    return Figures(
        latency_p50=percentile(times, 0.5),
        latency_p99=percentile(times, 0.99),
        requests_per_s=len(short.times) / short.took,
        cpu_per_request=per_request,
        tokens_per_s=len(long.times) * args.tokens / long.took,
        cpu_per_token=per_token,
    )


async def _requests(
    contender: Contender, num_open: int, num_tokens: int, stream: bool, seconds: float
) -> tuple[Loop, float | None]:
    """Run a closed loop of so many requests in flight, with the gateway's CPU seconds."""
    body = contender.body(num_tokens, stream=stream)
    pid = None if contender.process is None else contender.process.pid
    before = 0.0 if pid is None else cpu_seconds(pid)
    loop = await run_loop(contender.endpoint, PATH, [body] * num_open, seconds)
    return loop, None if pid is None else cpu_seconds(pid) - before


def _setting(args: Namespace) -> dict[str, object]:
    names = ("rounds", "seconds", "streams", "tokens", "delay_ms", "model")
    return {**{name: getattr(args, name) for name in names}, "num_cores": num_cores()}
