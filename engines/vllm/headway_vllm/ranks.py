"""The processes beside a worker's own that hold shares of its model: tensor parallelism.

The worker's process is rank 0. It alone knows requests, plans and draws. The others are its
children (``follower.py``). Each is told over a pipe of its own what to do, and does it in the same
order. A worker that ends closes its pipes, and a rank that notices ends. A rank that ends, ends
its worker.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch

from headway.errors import Code, HeadwayError
from headway_vllm.draws import Draw
from services.runtime.watchdog import end_process

FOLLOWER = (sys.executable, "-m", "headway_vllm.follower")
"""The command of a rank; the numbers of its two pipes follow."""
PATIENCE = 600
"""Seconds that each step of the start may take, where vLLM's options give none."""
_LAST_WORDS = 30.0
"""Seconds that a rank has to end by itself."""


def clear_away(meeting: str) -> None:
    """Remove what ranks that were killed leave: where they met, and the memory that they shared."""
    place = Path(meeting.removeprefix("file://"))
    if place.name:
        for left in (place, *Path("/dev/shm").glob(f"{place.name}-*")):
            with suppress(OSError):
                left.unlink()


class RankProcess:
    """One of the other ranks, as rank 0 sees it."""

    def __init__(self, rank: int, num_threads: int) -> None:
        self.rank = rank
        self.orders, orders = Pipe()
        self.kv, kv = Pipe()
        ends = (orders.fileno(), kv.fileno())
        self.process = subprocess.Popen(
            [*FOLLOWER, *map(str, ends)],
            pass_fds=ends,
            env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
            stdin=subprocess.DEVNULL,
        )
        orders.close()
        kv.close()

    def hear(self, patience: float) -> Any:
        """Return its next answer; HeadwayError if it ends or takes longer, in seconds."""
        try:
            if self.orders.poll(patience):
                return pickle.loads(self.orders.recv_bytes())
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAST_WORDS)
            status = self.process.returncode
            raise self._failure(
                f"has ended with status {status}; its last words are above"
            ) from None
        message = f"has not answered for {patience:g} s; distributed_timeout_seconds gives it more"
        raise self._failure(message)

    def _failure(self, what: str) -> HeadwayError:
        named = f"rank {self.rank} of vLLM, process {self.process.pid},"
        return HeadwayError(Code.UNAVAILABLE, f"{named} {what}", param="engine_args")

    def end(self, patience: float) -> None:
        """Let it end, by force after so many seconds."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.orders.close()
        self.kv.close()


class Ranks:
    """All ranks but this process, which is rank 0."""

    def __init__(self, size: int, num_threads: int, patience: float) -> None:
        """Start them; HeadwayError if one does not come within ``patience`` seconds.

        ``size``: the processes of the worker, with this one. ``num_threads``: of each.
        """
        self.size = size
        self._patience = patience
        self._closing = False
        self._meeting = ""
        self._kv_lock = Lock()
        """Held from a question about KV to its answer."""
        self._others = [RankProcess(rank, num_threads) for rank in range(1, size)]
        try:
            self.wait()
        except BaseException:
            self.close(at_once=True)
            raise
        Thread(target=self._watch, name="ranks", daemon=True).start()

    def begin(self, config: Any, meeting: str) -> None:
        """Let each load its share; ``meeting``: where torch.distributed meets."""
        self._meeting = meeting
        for each in self._others:
            self._send([each], ("begin", (config, each.rank, meeting), {}, True))

    def tell(
        self, method: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Let each do this, without an answer: one that fails ends."""
        self._send(self._others, (method, args, kwargs or {}, False))

    def ask(
        self, method: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Let each do this; ``wait`` takes the answers."""
        self._send(self._others, (method, args, kwargs or {}, True))

    def wait(self) -> None:
        """Wait until each has done what it was asked for; HeadwayError for the first failure."""
        for each in self._others:
            problem = each.hear(self._patience)
            if problem:
                message = f"rank {each.rank} of vLLM failed: {problem}"
                raise HeadwayError(Code.INTERNAL, message, param="engine_args")

    def shared(self, draw: Draw) -> Draw:
        """Return ``draw``, whose tokens the others take for theirs."""
        self.tell("take_draws")

        def drawn(logits: torch.Tensor) -> torch.Tensor:
            tokens = draw(logits)
            packed = tokens.to("cpu", torch.int64).numpy().tobytes()
            for each in self._others:
                each.orders.send_bytes(packed)
            return tokens

        return drawn

    def of_kv(self, questions: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """Return each rank's answer about its KV, to a question of its own; any thread may ask."""
        with self._kv_lock:
            for each, question in zip(self._others, questions, strict=True):
                each.kv.send_bytes(pickle.dumps(question, pickle.HIGHEST_PROTOCOL))
            return [each.kv.recv_bytes() for each in self._others]

    def part(self) -> None:
        """Tell them that their end is wanted."""
        self._closing = True
        with suppress(OSError):
            self.tell("end")

    def close(self, *, at_once: bool = False) -> None:
        """Wait for their end."""
        self._closing = True
        for each in self._others:
            each.end(0.0 if at_once else _LAST_WORDS)

    def _send(self, ranks: Sequence[RankProcess], message: tuple[Any, ...]) -> None:
        packed = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for each in ranks:
            each.orders.send_bytes(packed)

    def _watch(self) -> None:
        """End this process when a rank has ended: it would wait for it without an end."""
        poll = select.poll()
        ranks = {each.orders.fileno(): each for each in self._others}
        for fileno in ranks:
            poll.register(fileno, select.POLLRDHUP)
        ended = [ranks[fileno] for fileno, _ in poll.poll()]
        if not self._closing:
            with suppress(subprocess.TimeoutExpired):
                ended[0].process.wait(1.0)
            status = ended[0].process.returncode
            clear_away(self._meeting)
            end_process("vllm_rank_ended", rank=ended[0].rank, status=status)
