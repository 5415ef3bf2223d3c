"""``headway profile run``: measure a deployment on this machine and write its profile."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from cli.options import add_model, require_ranges
from headway.cost.buckets import Buckets
from headway.cost.profile import Profile, save_profile
from headway.errors import invalid, require_over
from planning.calibrate.model import read_records
from planning.profile.plan import STAGES, buckets_within
from planning.profile.result import Deployment, doubt, fit_passes, make_profile, table
from planning.profile.steps import ProfileSteps
from planning.profile.workers import bench
from results.kept import Kept
from results.output import num_cores
from results.progress import bar

DESCRIPTION = """\
Measure what one instance of a deployment releases, and write its profile.

Starts a prefill and a decode worker with the model and raises what is offered to them until their
output no longer grows: prompt tokens/s (V_P), KV tokens/s between them (V_N), and tokens of
completed requests/s for nine kinds of request, short to long in input and output (V_D). Then it
looks for the largest chunk beside which decoding meets the TPOT SLO (V_conv), and fits the
pass-time model to all passes. Nothing else should run on the machine meanwhile.
"""
EPILOG = """\
An interrupted run (Ctrl-C) goes on where it ended when it is called again. Examples:

  headway profile run --out mini.toml
  headway profile run --model Qwen/Qwen2.5-0.5B-Instruct --device cuda --out qwen.toml
  headway up --autoscale --preset tokenscale --profile mini.toml
  headway calibrate fit --profile mini.toml --out here.toml
  headway simulate chat-and-reasoning --profile mini.toml
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: the model's name.toml")
    _add_deployment(parser.add_argument_group("deployment", "as the workers are to be started"))
    _add_measurement(parser.add_argument_group("measurement"))
    parser.set_defaults(run=run)


def _add_deployment(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add_model(group)
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default cpu)")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default auto)")
    add("--quantization", default="", help="of the weights, as the worker's (default none)")
    add("--num-threads", type=int, default=0, metavar="N", help="a worker's; default: half of all")
    add("--chunk-tokens", type=int, default=512, metavar="N", help="prefiller's, a pass (512)")
    add("--block-size", type=int, default=0, metavar="N", help="tokens per KV block (the worker's)")
    add(
        "--kv-cache-gib",
        type=float,
        default=0.0,
        metavar="GIB",
        help="of each of the two workers (default: the worker's, of half a GPU)",
    )
    add("--max-model-len", type=int, default=0, metavar="N", help="default: the model's own")


def _add_measurement(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--tpot-slo", type=float, default=0.1, metavar="S", help="seconds a token, for V_conv (0.1)"
    )
    add("--input-tokens", default="256,1024,8192", metavar="S,M,L", help="of the buckets; too long "
        "ones are cut to what the model takes (256,1024,8192)")  # fmt: skip
    add("--output-tokens", default="100,350,610", metavar="S,M,L", help="(100,350,610)")
    add("--seconds", type=float, default=4.0, metavar="S", help="for each figure, at least (4)")
    add("--name", default="", help="of the profile (default: the file's)")
    add("--restart", action="store_true", help="forget what an interrupted run has measured")


def run(args: argparse.Namespace) -> int:
    """Measure, fit, write; HeadwayError for what cannot be measured."""
    require_over("--tpot-slo", args.tpot_slo, 0)
    require_ranges(args, seconds=(0.05, 600))
    sizes = [_sizes(args, name) for name in ("input_tokens", "output_tokens")]
    out = args.out or Path(f"{Path(args.model).name}.toml")
    flags = _flags(args)
    names = ("seconds", "input_tokens", "output_tokens", "tpot_slo")
    kept = Kept(out, {"worker": list(flags), **{name: getattr(args, name) for name in names}})
    if args.restart:
        kept.forget()
    num_known = kept.read()
    if num_known:
        print(f"going on after {num_known} measurements of {kept.path}", flush=True)
    try:
        profile = asyncio.run(_measure(args, kept, Buckets(*sizes), flags, out))
    except KeyboardInterrupt:
        print(f"interrupted: call it again to go on from {kept.path}", file=sys.stderr)
        raise
    _print(profile, out)
    kept.forget()
    return 0


def _sizes(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    given = getattr(args, name)
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError as error:
        limit = "three numbers of tokens by comma, ascending: 256,1024,8192"
        raise invalid("--" + name.replace("_", "-"), given, limit) from error


def _flags(args: argparse.Namespace) -> tuple[str, ...]:
    names = ["model", "device", "dtype", "quantization", "chunk_tokens", "block_size"]
    names += ["kv_cache_gib", "max_model_len"]
    pairs = [(f"--{name.replace('_', '-')}", str(getattr(args, name))) for name in names]
    if args.device != "cpu":  # both are on one GPU
        pairs.append(("--gpu-share", "0.5"))
    given = [part for pair in pairs if pair[1] for part in pair]
    return (*given, "--num-threads", str(args.num_threads or _num_threads()))


def _num_threads() -> int:
    """Return half of the cores: what ``headway up`` gives each of one prefiller and one decoder."""
    return max(1, num_cores() // 2)


async def _measure(
    args: argparse.Namespace, kept: Kept, buckets: Buckets, flags: Sequence[str], out: Path
) -> Profile:
    with _progress(len(STAGES)) as (say, done):
        number = len(kept.starting_with("start-up prefill")) + 1
        async with bench(flags, kept.passes, number, lambda line: None) as workers:
            for role, seconds in zip(("prefill", "decode"), workers.start_ups, strict=True):
                kept.put(f"start-up {role} {number}", seconds)
            say(f"both workers are up; {max(workers.start_ups):.1f} s at most")
            done()
            info = replace(workers.prefiller.info, num_blocks=workers.decoder.info.num_blocks)
            sizes = buckets_within(buckets, info.max_model_len)
            like = await workers.kv_header(sizes.input_tokens[0])
            steps = ProfileSteps(workers, kept, sizes, args.seconds, args.tpot_slo, say, done)
            start_ups = kept.starting_with("start-up ")
            measured = await steps.run(sum(start_ups) / len(start_ups), like)
        records = await asyncio.to_thread(read_records, kept.passes)
        fit = fit_passes([each for record in records for each in record.passes])
        deployment = _deployment(args, out, like.dtype)
        profile = make_profile(info, deployment, measured, fit)
        save_profile(profile, out)
        done()
    if doubt(fit):
        print(f"note: {doubt(fit)}", file=sys.stderr)
    return profile


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """Show a bar with what was found last; print lines where no terminal is."""
    with bar("measuring", total) as progress:
        progress.tries("starting workers")

        def say(line: str) -> None:
            progress.tries(line)
            if not sys.stderr.isatty():
                print(line, flush=True)

        yield say, progress.advance


def _deployment(args: argparse.Namespace, out: Path, dtype: str) -> Deployment:
    threads = args.num_threads or _num_threads()
    is_cpu = args.device == "cpu"
    device = f"CPU, threads a worker: {threads}" if is_cpu else args.device
    kind = f"{dtype}, {args.quantization}" if args.quantization else dtype
    return Deployment(args.name or out.stem, device, kind, "none")


def _print(profile: Profile, out: Path) -> None:
    for name, figure in table(profile):
        print(f"{name:<10} {figure}")
    print(f"\n{profile.origin}\nwritten to {out}; try:\n")
    print(f"  headway up --autoscale --preset tokenscale --profile {out}")
