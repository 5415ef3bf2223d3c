"""A worker's Prometheus metrics: counted as actions are performed, or read from the core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from headway.cluster import UnitLoad
from headway.core.worker.events import PassFailed, PlanningAction, WorkerEvent
from headway.core.worker.room import Preemptions
from headway.core.worker.unit import PrefixCounts
from headway.cost.costs import Constant
from headway.engine import EngineStepped
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import EndForward, MeasuredCosts, Tuned
from services.runtime.on_loop import on_loop
from services.runtime.vllm_names import VllmNames

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_MISSED = (0, 1, 2, 4, 8, 16, 32, 64, 128)

_UNIT_GAUGES: tuple[tuple[str, str, Callable[[UnitLoad], float]], ...] = (
    ("running_requests", "Requests decoding", lambda load: load.num_running),
    (
        "queued_prefill_tokens",
        "Prompt tokens accepted, not computed",
        lambda load: load.queued_prefill_tokens,
    ),
    ("kv_tokens", "Tokens whose KV is held", lambda load: load.kv_tokens),
    ("host_kv_tokens", "Tokens whose KV waits in host memory", lambda load: load.host_tokens),
    ("free_kv_blocks", "KV blocks free", lambda load: load.num_free_blocks),
    (
        "reasoning_requests",
        "Requests that reason; 0 unless the scheduler's policies read it",
        lambda load: load.num_reasoning,
    ),
)
_USAGE = "Share of the KV blocks that are in use"


VLLM_NAMES = {
    "headway_worker_held_requests": "vllm:num_requests_running",
    "headway_worker_waiting_requests": "vllm:num_requests_waiting",
    "headway_worker_kv_usage": "vllm:kv_cache_usage_perc",
    "headway_worker_kv_config": "vllm:cache_config_info",
    "headway_worker_adapters": "vllm:lora_requests_info",
    "headway_worker_prefix_asked_tokens": "vllm:prefix_cache_queries",
    "headway_worker_prefix_hit_tokens": "vllm:prefix_cache_hits",
    "headway_worker_prompt_tokens": "vllm:prompt_tokens",
    "headway_worker_output_tokens": "vllm:generation_tokens",
    "headway_worker_prefill_seconds": "vllm:request_prefill_time_seconds",
}
"""vLLM's names of some of them, by ours."""
SENT, REFUSED, CALLED_OFF, BROKEN = TRANSFER_ENDS = ("sent", "refused", "called_off", "broken")
"""How a transfer of KV to another worker ends."""


class CoreCounts(Protocol):
    """Totals that a worker's core keeps since its start."""

    @property
    def num_requests(self) -> Sequence[tuple[int, int]]:
        """Return each DP unit's requests that hold blocks, and those that wait for some."""

    @property
    def adapters(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the adapters of requests that hold blocks, and of those that wait for some."""

    @property
    def prefix_counts(self) -> PrefixCounts:
        """Return what the prefix cache was asked for and had."""

    @property
    def preemptions(self) -> Preemptions:
        """Return how many requests lost their blocks."""

    @property
    def constants(self) -> Sequence[Constant]:
        """Return the constants that its policy uses."""

    @property
    def measured_costs(self) -> MeasuredCosts | None:
        """Return the measured costs as last adopted."""


class WorkerMetrics:
    """Metrics of one worker. Names begin with ``headway_worker_``; units are in the names."""

    def __init__(
        self,
        registry: CollectorRegistry,
        core: CoreCounts,
        model: str,
        num_blocks: int,
        block_size: int,
        num_adapters: int = 0,
    ) -> None:
        """``num_blocks``: KV blocks of one DP unit, of ``block_size`` tokens."""
        self._core = core
        self._num_adapters = num_adapters
        self._block_size = block_size
        self._totals = _Totals()
        self._num_blocks = num_blocks
        self._read: Callable[[], Sequence[Metric]] = on_loop(lambda: [*self._figures()], [])
        counter, gauge, histogram = _makers(registry)
        self.num_passes = 0
        self._passes = counter("forward_passes", "Forward passes started")
        tokens = counter("computed_tokens", "Tokens computed, by phase", ["phase"])
        self._decode_tokens, self._prefill_tokens = map(tokens.labels, ("decode", "prefill"))
        self._finished = counter("finished_requests", "Requests ended here", ["reason"])
        self._pass_time = histogram(
            "forward_pass_seconds", "Duration of reported forward passes, seconds", buckets=_SECONDS
        )
        self._loads: dict[int, UnitLoad] = {}  # the last, by unit
        self._gamma = gauge(
            "gamma_per_s",
            "Decay of the boost as last sent by the scheduler (γ-Ada); 0: not sent",
        )
        self._pause = histogram(
            "move_pause_seconds",
            "From a moving request's stop here until it runs at its target, seconds",
            buckets=_SECONDS,
        )
        self._missed = histogram(
            "move_pause_tokens",
            "Forward passes that began here meanwhile: tokens that its client waited for",
            buckets=_MISSED,
        )
        self._transfers = counter(
            "kv_transfers",
            "KV for other workers: sent, refused, called off, or the link to them was broken",
            ["end"],
        )
        self._transfer_bytes = counter(
            "kv_transfer_bytes", "KV that went to other workers, by its way, bytes", ["by"]
        )
        for end in TRANSFER_ENDS:  # a rate needs the series before its first count
            self._transfers.labels(end)
        self._drafts = counter(
            "drafts", "Tokens that the engine guessed: accepted or refused", ["outcome"]
        )
        for outcome in ("accepted", "refused"):
            self._drafts.labels(outcome)
        self._broken_links = counter(
            "broken_token_links", "Token streams to gateways that broke or could not be opened"
        )
        VllmNames(registry, VLLM_NAMES, model)
        registry.register(self)

    def collect(self) -> Sequence[Metric]:
        """Return the core's totals, when the registry is scraped; on the core's loop."""
        return self._read()

    def _figures(self) -> Iterator[Metric]:
        prefixes, preemptions = self._core.prefix_counts, self._core.preemptions
        yield from self._unit_gauges()
        yield from self._routing_figures(prefixes)
        yield CounterMetricFamily(
            "headway_worker_prefix_asked_tokens",
            "Tokens of admitted requests, looked for in the prefix cache",
            prefixes.num_asked_tokens,
        )
        yield CounterMetricFamily(
            "headway_worker_prefix_hit_tokens",
            "Tokens of admitted requests that the prefix cache had",
            prefixes.num_hit_tokens,
        )
        yield CounterMetricFamily(
            "headway_worker_prefix_host_hit_tokens",
            "Those of them that came back from host memory",
            prefixes.num_host_hit_tokens,
        )
        family = CounterMetricFamily(
            "headway_worker_preemptions",
            "Requests whose blocks were taken, for a better one (voluntary) or by need (forced)",
            labels=["kind"],
        )
        family.add_metric(["voluntary"], preemptions.num_voluntary)
        family.add_metric(["forced"], preemptions.num_forced)
        yield family
        constants = GaugeMetricFamily(
            "headway_worker_decision_constants",
            "Constants that the worker's policy uses, seconds: default, given, profile or measured",
            labels=["constant", "source"],
        )
        for name, value, source in self._core.constants:
            constants.add_metric([name, source.value], value)
        yield constants
        costs = GaugeMetricFamily(
            "headway_worker_measured_costs",
            "Pass-time coefficients, swaps and the link as last adopted, seconds; none before",
            labels=["cost"],
        )
        for name, value in asdict(self._core.measured_costs or MeasuredCosts()).items():
            if value:
                costs.add_metric([name], value)
        yield costs

    def _unit_gauges(self) -> Iterator[Metric]:
        for name, text, read in (*_UNIT_GAUGES, ("kv_usage", _USAGE, self._usage)):
            family = GaugeMetricFamily(f"headway_worker_{name}", text, labels=["unit"])
            for unit, load in self._loads.items():
                family.add_metric([str(unit)], read(load))
            yield family

    def _usage(self, load: UnitLoad) -> float:
        return 1.0 - load.num_free_blocks / self._num_blocks

    def _routing_figures(self, prefixes: PrefixCounts) -> Iterator[Metric]:
        """Yield what routers and autoscalers for vLLM read, beside KV usage and prefixes."""
        held = GaugeMetricFamily(
            "headway_worker_held_requests",
            "Requests that hold KV blocks, those that compute their prompts included",
            labels=["unit"],
        )
        waiting = GaugeMetricFamily(
            "headway_worker_waiting_requests", "Requests that wait for KV blocks", labels=["unit"]
        )
        sizes = GaugeMetricFamily(
            "headway_worker_kv_config",
            "1; block size in tokens and blocks of each DP unit in the labels",
            labels=["unit", "block_size", "num_gpu_blocks"],
        )
        for unit, (num_running, num_waiting) in enumerate(self._core.num_requests):
            held.add_metric([str(unit)], num_running)
            waiting.add_metric([str(unit)], num_waiting)
            sizes.add_metric([str(unit), str(self._block_size), str(self._num_blocks)], 1)
        yield held
        yield waiting
        yield sizes
        if self._num_adapters:
            yield self._adapters()
        yield CounterMetricFamily(
            "headway_worker_prompt_tokens",
            "Tokens of prompts: computed, or found in the prefix cache",
            self._totals.num_tokens + prefixes.num_hit_tokens,
        )
        yield CounterMetricFamily(
            "headway_worker_output_tokens", "Tokens drawn here", self._totals.num_output
        )
        yield SummaryMetricFamily(
            "headway_worker_prefill_seconds",
            "Seconds of the passes that computed prompts, summed over these prompts",
            self._totals.num_prompts,
            self._totals.seconds,
        )

    def _adapters(self) -> Metric:
        running, waiting = map(",".join, self._core.adapters)
        family = GaugeMetricFamily(
            "headway_worker_adapters",
            "The time now; adapters whose requests run, and wait, in the labels",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        family.add_metric([str(self._num_adapters), running, waiting], time.time())
        return family

    def heard(self, event: WorkerEvent) -> None:
        """Show the γ that the scheduler sent, count guesses, and time prompts."""
        if isinstance(event, PassResult | PassFailed):
            self._totals.ended(event)
        elif isinstance(event, Tuned):
            self._gamma.set(event.gamma)
        elif isinstance(event, EngineStepped) and event.num_drafts:
            self._drafts.labels("accepted").inc(event.num_accepted)
            self._drafts.labels("refused").inc(event.num_drafts - event.num_accepted)

    def performed(self, action: PlanningAction) -> None:
        """Measure passes and reports; no other action is measured."""
        if isinstance(action, ForwardPass):
            self._count_pass(action)
        elif isinstance(action, EndForward):
            self._show(action)

    def moved(self, pause: float, num_missed: int) -> None:
        """Observe a request's move to another worker; ``pause`` in seconds."""
        self._pause.observe(pause)
        self._missed.observe(num_missed)

    def transferred(self, end: str, by: str, num_bytes: int) -> None:
        """Count a transfer of KV by how it ended, and its bytes by their way."""
        self._transfers.labels(end).inc()
        self._transfer_bytes.labels(by).inc(num_bytes)

    def lost_gateway(self) -> None:
        """Count a token stream that broke."""
        self._broken_links.inc()

    def _count_pass(self, forward_pass: ForwardPass) -> None:
        num_tokens = sum(len(item.token_ids) for item in forward_pass.items)
        num_decode = sum(
            1 for item in forward_pass.items if item.sample and len(item.token_ids) == 1
        )
        self.num_passes += 1
        self._passes.inc()
        self._decode_tokens.inc(num_decode)
        self._prefill_tokens.inc(num_tokens - num_decode)
        self._totals.started(forward_pass, num_tokens - num_decode)

    def _show(self, report: EndForward) -> None:
        if report.pass_time > 0.0:
            self._pass_time.observe(report.pass_time)
        for finished in report.finished:
            self._finished.labels(finished.finish_reason.value).inc()
        self._loads.update((load.unit, load) for load in report.loads)


class _Totals:
    """What passes have computed: prompts, and output tokens."""

    def __init__(self) -> None:
        self.num_tokens = self.num_prompts = self.num_output = 0
        self.seconds = 0.0
        self._num_in_pass: dict[int, int] = {}

    def started(self, forward_pass: ForwardPass, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self.num_output += sum(item.sample for item in forward_pass.items)
        prompts = [item for item in forward_pass.items if len(item.token_ids) > 1]
        if prompts:
            self._num_in_pass[forward_pass.pass_id] = len(prompts)
            self.num_prompts += sum(item.sample for item in prompts)

    def ended(self, result: PassResult | PassFailed) -> None:
        num_prompts = self._num_in_pass.pop(result.pass_id, 0)
        if isinstance(result, PassResult):
            self.seconds += num_prompts * result.pass_time


class PredictionMetrics:
    """Metrics of the remaining lengths that a worker asks the predictor for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, _, histogram = _makers(registry)
        self.predicted = counter("predictions", "Remaining lengths predicted")
        self.dropped = counter(
            "dropped_predictions",
            "Passes whose hidden states were dropped: the predictor is too slow",
        )
        self.failed = counter("failed_predictions", "Calls to the predictor that failed", ["code"])
        self.latency = histogram(
            "prediction_seconds", "Duration of calls to the predictor, seconds", buckets=_SECONDS
        )


def _makers(registry: CollectorRegistry) -> tuple[Any, Any, Any]:
    """Return constructors of counters, gauges and histograms of a worker."""
    names: dict[str, Any] = {"namespace": "headway", "subsystem": "worker", "registry": registry}
    return partial(Counter, **names), partial(Gauge, **names), partial(Histogram, **names)
