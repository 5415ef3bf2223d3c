"""Models with a trained predictor: scoring, reloading and learning."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headway.errors import Code, HeadwayError
from services.predictor.config import PredictorConfig
from services.runtime.essential import end_tasks, essential
from services.runtime.logs import get_logger
from services.runtime.wire import Question

if TYPE_CHECKING:
    from services.predictor.learner import Learner
    from services.predictor.scorer import Scorer, Scores

_LATENCY = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Models:
    """The predictors by model; it polls for new versions, and writes them where it learns."""

    def __init__(self, config: PredictorConfig, registry: CollectorRegistry) -> None:
        self._config = config
        self._seconds = Histogram(
            "headway_predictor_batch_seconds",
            "Duration of scoring one batch, seconds",
            buckets=_LATENCY,
            registry=registry,
        )
        self._rows = Histogram(
            "headway_predictor_batch_rows",
            "Hidden states scored together",
            buckets=_ROWS,
            registry=registry,
        )
        self._versions = Counter(
            "headway_predictor_versions",
            "New versions taken up",
            ["model"],
            registry=registry,
        )
        Gauge("headway_predictor_models", "Models with a predictor", registry=registry).set(
            len(config.predictors)
        )
        self._scorers: dict[str, Scorer] = {}
        self._learners: dict[str, Learner] = {}
        self._learning: set[asyncio.Task[None]] = set()
        self._reloading: asyncio.Task[None] | None = None
        self._log = get_logger()

    async def start(self) -> None:
        """Load every predictor, then poll for newer versions; NOT_FOUND if one is missing."""
        config = self._config
        if not config.predictors:
            return  # load torch only if it is needed
        from services.predictor.learner import Learner, LearnSettings
        from services.predictor.scorer import open_scorers

        self._scorers = await asyncio.to_thread(
            open_scorers, config.predictors, self._scored, config.num_threads
        )
        for model, scorer in self._scorers.items():
            self._log.info("predictor_loaded", model=model, version=scorer.loaded.version)
            if config.learn:
                self._learners[model] = Learner(scorer, LearnSettings(every=config.learn_every))
        self._reloading = essential(self._reload(), "reloading")

    async def stop(self) -> None:
        """Stop everything; do not wait for learning in progress."""
        await end_tasks(*self._learning, self._reloading)
        await asyncio.gather(*(scorer.close() for scorer in self._scorers.values()))

    async def answer(self, question: Question) -> Scores:
        """Return the remaining tokens; NOT_FOUND for a model without a predictor."""
        scorer = self._scorers.get(question.model)
        if scorer is None:
            known = ", ".join(self._scorers) or "none"
            message = f"no predictor of model {question.model!r} is here; there are: {known}"
            raise HeadwayError(Code.NOT_FOUND, message, param="model")
        scores = await scorer.score(question.seen.hidden.values, question.seen.counts)
        learner = self._learners.get(question.model)
        if learner is not None and learner.take(question.seen, question.ended):
            self._learn(scorer, learner)
        return scores

    def _scored(self, num_rows: int, seconds: float) -> None:
        self._rows.observe(num_rows)
        self._seconds.observe(seconds)

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(self._config.reload_interval)
            for model, scorer in self._scorers.items():
                try:
                    is_newer = await scorer.reload()
                except Exception as error:  # an unreadable version; the loaded one keeps serving
                    self._log.error("reload_failed", model=model, exc_info=error)
                    continue
                if is_newer:
                    self._versions.labels(model).inc()

    # --- learning ---------------------------------------------------------------------

    def _learn(self, scorer: Scorer, learner: Learner) -> None:
        if self._learning:
            return  # one model at a time
        task = asyncio.create_task(self._learn_once(scorer, learner))
        self._learning.add(task)
        task.add_done_callback(self._learning.discard)

    async def _learn_once(self, scorer: Scorer, learner: Learner) -> None:
        samples = learner.samples()
        if samples is None:
            return
        try:
            version = await asyncio.to_thread(learner.learn, samples)
        except (OSError, RuntimeError, ValueError) as error:  # the old version keeps serving
            self._log.error("learning_failed", model=scorer.model, exc_info=error)
            return
        if version and await scorer.reload():
            self._versions.labels(scorer.model).inc()
