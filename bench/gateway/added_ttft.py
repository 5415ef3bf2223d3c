"""The time that an idle cluster adds to the model's own time to first token.

Every prompt is measured twice. The first time a worker's engine in this process computes it: one
prefill pass with the draw of a token, which is the model's own time. The second time it goes to
``headway up`` over HTTP: from the write of the request to the first event of the stream. The
model has one thread in both.

    python -m bench.gateway.added_ttft --num-requests 200
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import uvloop
from tokenizers import Tokenizer

from bench.runner.processes import Process, until_answers
from bench.serve.client import Client, Endpoint, RequestFailedError
from headway.forward_pass import ForwardPass, PassItem
from headway.request import SamplingParams, StreamKey
from services.local.store import free_port
from services.runtime.rooms import SHIPPED_MODEL, model_folder, module_command
from services.worker.engine.backend import TorchBackend
from services.worker.engine.options import EngineOptions

START_PATIENCE = 120.0
BLOCK_SIZE = 16


def prompts(num_requests: int, seed: int) -> list[str]:
    """Sums of 2 to 20 numbers."""
    rng = random.Random(seed)
    sums = ([rng.randrange(100) for _ in range(rng.randint(2, 20))] for _ in range(num_requests))
    return [f"Add {', '.join(map(str, numbers))}." for numbers in sums]


class OwnTime:
    """The model alone, in this process."""

    def __init__(self, model: str) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
        options = EngineOptions(num_blocks=256, block_size=BLOCK_SIZE, num_threads=1)
        self._backend = TorchBackend.load(model, options)
        self._backend.warm_up()

    def seconds(self, prompt: str) -> float:
        """Time one prefill pass over the prompt, with the draw of the first token."""
        token_ids = tuple(self._tokenizer.encode(prompt).ids)
        item = PassItem(
            key=StreamKey("bench", 1),
            token_ids=token_ids,
            start=0,
            block_table=list(range(-(-len(token_ids) // BLOCK_SIZE))),
            sample=True,
            sampling=SamplingParams(temperature=0.0, max_tokens=1),
            prompt_token_ids=token_ids,
            output_token_ids=[],
        )
        began_at = time.perf_counter()
        self._backend.run(ForwardPass(1, (item,)))
        return time.perf_counter() - began_at


async def cluster_seconds(client: Client, model: str, prompt: str) -> float:
    """Measure from the request's write to its first event."""
    asked = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    came_at: list[float] = []
    body = json.dumps(asked).encode()
    began_at = time.perf_counter()
    response = await client.post("/v1/completions", body, lambda _, at: came_at.append(at))
    if response.status != 200 or not came_at:
        raise RequestFailedError("refused", f"HTTP {response.status}: {bytes(response.body)!r}")
    return came_at[0] - began_at


async def first_answer(client: Client) -> str:
    """Return why no first token comes back; "" where one does."""
    try:
        models = json.loads((await client.get("/v1/models")).body)
        await cluster_seconds(client, models["data"][0]["id"], "Add 1, 2.")
    except (RequestFailedError, ValueError, LookupError) as error:
        return str(error)
    return ""


def report(name: str, values: list[float]) -> None:
    """Print median and 90th percentile in ms."""
    cuts = statistics.quantiles(values, n=10)
    print(
        f"{name:<26} median {1e3 * statistics.median(values):6.2f} ms   P90 {1e3 * cuts[8]:6.2f} ms"
    )


async def measure(args: argparse.Namespace) -> None:
    """Ask one after the other and print what the cluster adds."""
    port = free_port()
    name = Path(args.model).name
    client = Client(Endpoint.parse(f"http://127.0.0.1:{port}"), 60.0)
    up = ["up", "--port", str(port), "--model", args.model]
    with tempfile.TemporaryDirectory() as folder:
        command = module_command("cli", *up, "--log-dir", folder)
        with Process("headway-up", command, Path(folder)) as process:
            await until_answers(process, partial(first_answer, client), within=START_PATIENCE)
            alone = OwnTime(args.model)
            own: list[float] = []
            whole: list[float] = []
            for prompt in prompts(args.num_requests, args.seed):
                own.append(alone.seconds(prompt))
                whole.append(await cluster_seconds(client, name, prompt))
            client.close()
    report("the model's own", own)
    report("over the cluster", whole)
    report("added", [w - o for w, o in zip(whole, own, strict=True)])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="what an idle cluster adds to TTFT"
    )
    parser.add_argument("--model", type=model_folder, default=SHIPPED_MODEL, help="a folder")
    parser.add_argument("--num-requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
