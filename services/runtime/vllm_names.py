"""Metrics once more under vLLM's names, so that boards and autoscalers made for it work."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric


class VllmNames:
    """A collector of metrics that a registry has under other names.

    ``names``: vLLM's name by ours. Every sample gets the label ``model_name``, as vLLM's have, and
    a DP unit is an ``engine``.
    """

    def __init__(self, registry: CollectorRegistry, names: Mapping[str, str], model: str) -> None:
        self._registry = registry
        self._names = names
        self._model = model
        self._collecting = threading.local()  # by this thread, now
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: what is collected is known only then."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that the table names; the registry collects this collector, too."""
        if getattr(self._collecting, "now", False):
            return
        self._collecting.now = True
        try:
            metrics = [metric for metric in self._registry.collect() if metric.name in self._names]
        finally:
            self._collecting.now = False
        for metric in metrics:
            yield self._renamed(metric, self._names[metric.name])

    def _renamed(self, original: Metric, name: str) -> Metric:
        metric = Metric(name, original.documentation, original.type)
        for sample in original.samples:
            labels = {"model_name": self._model, **sample.labels}
            if "unit" in labels:
                labels["engine"] = labels.pop("unit")
            metric.add_sample(name + sample.name[len(original.name) :], labels, sample.value)
        return metric
