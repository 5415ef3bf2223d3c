"""Scoring of hidden states: waiting calls form one batch; new versions are loaded as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headway.errors import Code, HeadwayError, invalid
from services.predictor.network import LengthNetwork
from services.predictor.versions import LoadedPredictor, load_version, newest_version
from services.runtime.essential import end_tasks, essential
from services.runtime.logs import get_logger

MOST_ROWS = 1024
"""Most rows of one batch; further calls form the next batch."""

_States = NDArray[np.float16]
_Counts = NDArray[np.float32]


class Scores(NamedTuple):
    """Remaining tokens, (n,), NaN where a state was missing; the version and its weight."""

    remaining: NDArray[np.float32]
    version: str
    weight: float


class _Call(NamedTuple):
    hidden: _States
    counts: _Counts
    answer: asyncio.Future[Scores]


class Scorer:
    """The predictor of one model: its newest version, and the calls waiting for it.

    ``scored`` is called with the rows and seconds of every batch.
    """

    def __init__(
        self, model: str, folder: Path, scored: Callable[[int, float], None], num_threads: int
    ) -> None:
        self.model = model
        self.folder = folder
        self._scored = scored
        self._num_threads = num_threads
        self._loaded = load_version(folder)
        self._network = self._loaded.network.for_scoring()
        self._waiting: list[_Call] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, f"scorer-{model}")
        self._log = get_logger().bind(model=model)

    @property
    def loaded(self) -> LoadedPredictor:
        """The version in use."""
        return self._loaded

    async def score(self, hidden: _States, counts: _Counts | None = None) -> Scores:
        """Score states (n, d); ``counts`` (n, 2) are prompt and output tokens, NaN if unknown.

        INVALID_ARGUMENT if the width differs or no row is finite.
        """
        width = self._loaded.network.shape.width
        if hidden.shape[1] != width:
            limit = f"{width}, as the hidden states of {self.model}"
            raise invalid("width", hidden.shape[1], limit)
        if not np.isfinite(hidden).all(axis=1).any():
            raise invalid("hidden", "NaN or infinite", "finite in at least one vector")
        if counts is None:
            counts = np.full((len(hidden), 2), np.nan, dtype=np.float32)
        call = _Call(hidden, counts, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._task is None:
            self._task = essential(self._run(), "scoring", may_return=True)
        return await call.answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            calls, network, loaded = self._take(), self._network, self._loaded
            began = time.perf_counter()
            states = np.concatenate([call.hidden for call in calls])
            counts = np.concatenate([call.counts for call in calls])
            try:
                remaining = await loop.run_in_executor(
                    self._thread, self._compute, network, states, counts
                )
            except Exception as error:  # callers must get the error
                self._log.error("scoring_failed", exc_info=error)
                _fail(calls, HeadwayError(Code.INTERNAL, f"the predictor failed: {error}"))
                continue
            self._scored(len(states), time.perf_counter() - began)
            start = 0
            for call in calls:
                stop = start + len(call.hidden)
                if not call.answer.done():
                    call.answer.set_result(
                        Scores(remaining[start:stop], loaded.version, loaded.weight)
                    )
                start = stop
        self._task = None

    def _take(self) -> list[_Call]:
        calls: list[_Call] = []
        num_rows = 0
        while self._waiting and (not calls or num_rows + len(self._waiting[0].hidden) <= MOST_ROWS):
            calls.append(self._waiting.pop(0))
            num_rows += len(calls[-1].hidden)
        return calls

    def _compute(
        self, network: LengthNetwork, states: _States, counts: _Counts
    ) -> NDArray[np.float32]:
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        return network.remaining(states, counts)

    # --- versions ---------------------------------------------------------------------

    async def reload(self) -> bool:
        """Load the newest version if it has changed; calls in progress end with the old one."""
        newest = await asyncio.to_thread(newest_version, self.folder)
        if newest in ("", self._loaded.version):
            return False
        try:
            loaded = await asyncio.to_thread(load_version, self.folder, newest)
        except HeadwayError as error:
            self._log.warning("version_unreadable", version=newest, reason=error.message)
            return False
        if loaded.network.shape.width != self._loaded.network.shape.width:
            self._log.warning("version_of_another_width", version=newest)
            return False
        self._loaded, self._network = loaded, loaded.network.for_scoring()
        self._log.info("version_loaded", version=newest)
        return True

    async def close(self) -> None:
        """Stop scoring."""
        await end_tasks(self._task)
        _fail(self._waiting, HeadwayError(Code.UNAVAILABLE, "the predictor is stopping"))
        self._thread.shutdown(wait=False, cancel_futures=True)


def _fail(calls: list[_Call], error: HeadwayError) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)


def open_scorers(
    folders: Mapping[str, Path], scored: Callable[[int, float], None], num_threads: int
) -> dict[str, Scorer]:
    """Return a scorer for every model; NOT_FOUND if a folder holds no predictor."""
    return {
        model: Scorer(model, folder, scored, num_threads)
        for model, folder in sorted(folders.items())
    }
