"""vLLM's ``/metrics``: the few figures that the picker reads."""

from __future__ import annotations

import re

from headway.core.picker.events import EndpointMetrics

_LABELS = re.compile(r'(\w+)="([^"]*)"')
_SUMS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_hits_total",  # another endpoint computed them
    "vllm:request_prefill_time_seconds_sum",
    "vllm:generation_tokens_total",
    "vllm:request_prefill_time_seconds_count",
)
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second before 0.10
_CONFIG = "vllm:cache_config_info"


def read_metrics(text: str) -> EndpointMetrics | None:
    """Return the figures, summed over the engines of an endpoint; None without vLLM's gauges."""
    sums = dict.fromkeys(_SUMS, 0.0)
    usage, labels, is_there = 0.0, dict[str, str](), False
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line[: min(at for at in (line.find("{"), line.find(" "), len(line)) if at >= 0)]
        if name in sums:
            sums[name] += value_of(line)
            is_there = True
        elif name in _USAGE:
            usage = max(usage, value_of(line))
        elif name == _CONFIG:
            labels = dict(_LABELS.findall(line))
    if not is_there:
        return None
    running, waiting, prompt, hits, brought, seconds, output, prompts = sums.values()
    return EndpointMetrics(
        num_running=int(running),
        num_waiting=int(waiting),
        kv_usage=usage,
        num_blocks=_count(labels, "num_gpu_blocks"),
        block_size=_count(labels, "block_size") or 16,
        computed_tokens=max(0.0, prompt - hits - brought),
        prefill_seconds=seconds,
        output_tokens=output,
        num_prompts=prompts,
    )


def value_of(line: str) -> float:
    """Return the number at the end of a metric's line, 0 for none."""
    try:
        value = float(line.rsplit(" ", 1)[1])
    except (ValueError, IndexError):
        return 0.0
    return value if 0 <= value < 1e15 else 0.0


def _count(labels: dict[str, str], name: str) -> int:
    value = labels.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 12 else 0
