"""``python -m headway_vllm.follower``: a rank that holds a share of its worker's model.

It knows nothing of requests. It does what rank 0 does, in the same order, and takes the tokens
that rank 0 has drawn for its own.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import torch

from headway.forward_pass import ForwardPass
from headway_vllm.engine_parts import attention_of
from headway_vllm.ranks import clear_away
from headway_vllm.runners import runner_of
from headway_vllm.shared_kv import KvOfRank
from headway_vllm.shim import prepare_environment


class Follower:
    """A rank's share, and what rank 0 lets it do."""

    def __init__(self, orders: Connection, kv: Connection) -> None:
        self._orders = orders
        self._questions = kv
        self._executor: Any
        self._kv: KvOfRank
        self.meeting = ""
        """The place where torch.distributed meets, once it is known."""

    def serve(self) -> None:
        """Obey until rank 0 lets it end."""
        self._orders.send_bytes(pickle.dumps(None))
        while True:
            method, args, kwargs, answers = pickle.loads(self._orders.recv_bytes())
            if method == "end":
                self._executor.shutdown()
                return
            problem = None
            try:
                self._obey(method, args, kwargs)
            except Exception as error:
                if not answers:
                    raise
                traceback.print_exc()
                problem = repr(error)
            if answers:
                self._orders.send_bytes(pickle.dumps(problem))

    def _obey(self, method: Any, args: Any, kwargs: Any) -> None:
        own: Mapping[Any, Callable[..., None]] = {
            "begin": self._begin,
            "take_draws": self._take_draws,
            "keep_kv": self._keep_kv,
            "swap": self._swap,
        }
        if method in own:
            own[method](*args)
        else:
            self._executor.collective_rpc(method, args=args, kwargs=kwargs)

    def _begin(self, config: Any, rank: int, meeting: str) -> None:
        from headway_vllm.ranked import RankExecutor

        self.meeting = meeting
        self._executor = RankExecutor(config, rank, meeting)

    def _take_draws(self) -> None:
        _, adapter = runner_of(self._executor)
        adapter.draw_with(self._drawn)

    def _drawn(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.frombuffer(bytearray(self._orders.recv_bytes()), dtype=torch.int64)

    def _keep_kv(self, *sizes: Any) -> None:
        runner, adapter = runner_of(self._executor)
        self._kv = KvOfRank(attention_of(runner), adapter.kv_caches, *sizes)
        Thread(target=self._answer, name="kv", daemon=True).start()

    def _swap(self, forward_pass: ForwardPass) -> None:
        self._kv.host.swap(forward_pass)

    def _answer(self) -> None:
        """Read and write KV for rank 0, beside passes that do not touch it."""
        try:
            while True:
                method, args = pickle.loads(self._questions.recv_bytes())
                answer = self._kv.read(*args) if method == "read" else self._kv.write(*args)
                self._questions.send_bytes(answer)
        except EOFError:
            pass  # rank 0 has ended, which another thread notices
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _end_with(orders: Connection, follower: Follower) -> None:
    """End this process when the pipe's other end is closed, whatever its threads wait for."""
    poll = select.poll()
    poll.register(orders.fileno(), select.POLLRDHUP)
    poll.poll()
    clear_away(follower.meeting)
    os._exit(0)


def main(orders: str, kv: str) -> None:
    """Serve over two pipes, by their numbers."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # its worker says when
        signal.signal(ignored, signal.SIG_IGN)
    connection = Connection(int(orders))
    follower = Follower(connection, Connection(int(kv)))
    Thread(target=_end_with, args=[connection, follower], name="end", daemon=True).start()
    prepare_environment()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    from headway_vllm import ranked  # noqa: F401 (it takes long, and rank 0 waits for a sign)

    follower.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
