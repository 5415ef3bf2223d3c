"""``headway bench``: what a user feels, and what the gateway costs."""

from __future__ import annotations

import argparse

from cli import add_commands

BENCHES = {
    "start": "from the command to the first answer, beside vLLM",
    "serve": "replay arrivals against an OpenAI endpoint, open loop",
    "agents": "sessions in a closed loop, beside a session-hashing proxy",
    "gateway": "the gateway's own cost, beside its peers",
    "engine": "decode and prefill speed beside generate(), continuous batching and vLLM",
    "vllm": "a plain vLLM, Headway's order inside it, and Headway over it, on the same arrivals",
    "gpu": "one GPU, step by step: passes, choices, shares, the cluster, the demo",
    "sim": "the simulator's own speed",
    "abuse": "what one key's abuses do to another key's short requests",
    "flood": "what a flood does to other tenants, or a class that yields to other classes",
    "policies": "how long decisions take",
    "cpu": "CPU time of all processes a token, preset by preset",
    "takeover": "kill the scheduler leader under load",
    "predictor": "latency of the predictor by batch size",
    "clients": "other people's clients and tools, each in an environment of its own",
    "burst": "a burst over `headway up --autoscale`, one scaling policy after the other",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the benches."""
    add_commands(parser, "cli.bench", BENCHES, "bench", "KIND")
