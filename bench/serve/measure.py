"""A run of ``headway bench serve``: find the model, warm up, replay, report."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from argparse import Namespace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.serve.client import Client, Endpoint, RequestFailedError, error_text
from bench.serve.plan import Options, Plan, make_plan
from bench.serve.replay import Replay, Tally
from bench.serve.report import print_report, summarise, write_report
from headway.errors import Code, HeadwayError
from headway.metrics import Slo

_PROGRESS_INTERVAL = 0.5  # a redraw costs about a millisecond of the client's loop
_SPARE_FILES = 64
_NOT_CONFIG = ("api_key", "run", "command", "bench", "json")


async def measure(args: Namespace) -> int:
    """Return the exit status: 1 where a request failed, 130 where the run was stopped."""
    console, slo = Console(), Slo.parse(args.slo)
    api_key = args.api_key or os.environ.get("HEADWAY_API_KEY", "")
    endpoint = Endpoint.parse(args.url, api_key or os.environ.get("OPENAI_API_KEY", ""))
    client = Client(endpoint, args.timeout)
    stopping = asyncio.Event()
    try:
        options = await _options(args, client)
        plan = make_plan(options)
        await _warm_up(client, plan, args.warmup)
        replay = Replay(client, plan, most_open=_most_open())
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopping.set)
        duration = await _with_progress(console, replay, plan, stopping)
    finally:
        client.close()
    _report(args, console, options, plan, replay, summarise(replay.outcomes, slo, duration))
    if stopping.is_set():
        return 130
    return 1 if replay.tally.errors else 0


# --- before ---------------------------------------------------------------------------


async def _options(args: Namespace, client: Client) -> Options:
    model, limit = await served_model(client, args.url, args.model)
    names = set(Options.__dataclass_fields__) - {"model", "model_limit", "counts_tokens"}
    same = {name: getattr(args, name) for name in sorted(names)}
    return Options(model=model, model_limit=limit, **same)


async def served_model(client: Client, url: str, model: str = "") -> tuple[str, int | None]:
    """Return the model's name and, where the server says it, its context length.

    ``model``: the name that was given, "" for the first that the server names. HeadwayError where
    nothing answers at ``url``, the key is refused, or no model is named.
    """
    try:
        response = await client.get("/v1/models")
    except RequestFailedError as error:
        message = f"nothing answers at {url} ({error.detail}): start it, or give --url"
        raise HeadwayError(Code.UNAVAILABLE, message) from None
    if response.status in (401, 403):
        message = f"{url} refuses the key: {error_text(response.body)}"
        raise HeadwayError(Code.UNAUTHENTICATED, message)
    limits = _model_limits(response.body)
    if not (model or limits):
        message = f"{url}/v1/models (HTTP {response.status}) names no model: give --model"
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    name = model or next(iter(limits))
    return name, limits.get(name)


def _model_limits(body: bytes | bytearray) -> dict[str, int | None]:
    try:
        return {str(each["id"]): each.get("max_model_len") for each in json.loads(body)["data"]}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


async def _warm_up(client: Client, plan: Plan, num_requests: int) -> None:
    """Send requests of the plan, uncounted; HeadwayError where one fails."""
    for planned in plan.requests[:num_requests]:
        try:
            response = await client.post(plan.path, planned.body, lambda data, now: None)
        except RequestFailedError as error:
            raise HeadwayError(Code.UNAVAILABLE, f"the first request failed: {error}") from None
        if response.status != 200:
            said = f"HTTP {response.status}, {error_text(response.body)}"
            raise HeadwayError(Code.FAILED_PRECONDITION, f"the first request was refused: {said}")


def _most_open() -> int:
    """Connections that this process may hold; the soft limit is raised to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most - _SPARE_FILES


# --- meanwhile and after --------------------------------------------------------------


async def _with_progress(
    console: Console, replay: Replay, plan: Plan, stopping: asyncio.Event
) -> float:
    """Run it, drawing twice a second where somebody looks; the run's seconds."""
    if not console.is_terminal:
        return await replay.run(stopping)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    progress = Progress(*columns, TimeElapsedColumn(), auto_refresh=False, transient=True)
    bar = progress.add_task("", total=len(plan.requests))
    with progress:
        running = asyncio.create_task(replay.run(stopping))
        while not running.done():
            tally = replay.tally
            progress.update(
                bar, completed=tally.num_ended, description=_progress_text(tally), refresh=True
            )
            await asyncio.wait({running}, timeout=_PROGRESS_INTERVAL)
    return await running


def _progress_text(tally: Tally) -> str:
    text = f"{tally.num_sent - tally.num_ended} open, {tally.num_tokens} tokens"
    return text + (f", [red]{tally.errors.total()} errors[/]" if tally.errors else "")


def _report(
    args: Namespace,
    console: Console,
    options: Options,
    plan: Plan,
    replay: Replay,
    summary: dict[str, object],
) -> None:
    load = f"{options.rate:g} requests/s" if options.rate else "as traced"
    title = f"{options.model} at {args.url}: {len(plan.requests)} requests, {load}"
    print_report(console, title, summary, plan.notes)
    firsts: dict[str, str] = {}
    for outcome in replay.outcomes:
        if outcome.error_kind:
            firsts.setdefault(outcome.error_kind, outcome.error)
    for kind, detail in sorted(firsts.items()):
        console.print(f"  first {kind}: {detail}", markup=False)
    if args.json is not None:
        given = {name: value for name, value in vars(args).items() if name not in _NOT_CONFIG}
        config = {**given, "model": options.model, "notes": list(plan.notes)}
        write_report(args.json, config, summary, replay.outcomes)
        console.print(f"written: {args.json}", markup=False)
