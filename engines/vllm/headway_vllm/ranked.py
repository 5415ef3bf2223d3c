"""vLLM's executor of one rank, and that of the rank that leads the others.

vLLM's own for several processes runs no rank in the caller's process, where Headway draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import torch
from vllm.utils.network_utils import get_file_store_init_method
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from headway_vllm.ranks import PATIENCE, Ranks
from services.runtime.logs import get_logger
from services.runtime.watchdog import end_process


class RankExecutor(UniProcExecutor):
    """A rank's share of the model, in this process."""

    def __init__(self, config: Any, rank: int, meeting: str) -> None:
        """``meeting``: where torch.distributed meets the other ranks."""
        self._place = (meeting, rank, rank)
        super().__init__(config)

    def _distributed_args(self) -> tuple[str, int, int]:
        return self._place


class LeadingExecutor(RankExecutor):
    """The share of rank 0; what it is told to do, the other ranks do, too."""

    def __init__(self, config: Any) -> None:
        """Start the other ranks, and load all shares; HeadwayError for a rank that fails."""
        parallel = config.parallel_config
        patience = parallel.distributed_timeout_seconds or PATIENCE
        parallel.distributed_timeout_seconds = patience  # torch's, too
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # strangers find nothing that listens
        self.ranks = Ranks(parallel.tensor_parallel_size, torch.get_num_threads(), patience)
        try:
            meeting = get_file_store_init_method()
            self.ranks.begin(config, meeting)
            super().__init__(config, 0, meeting)
            self.ranks.wait()
        except BaseException:
            self.ranks.close(at_once=True)
            raise

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        non_block: bool = False,
        single_value: bool = False,
    ) -> Any:
        """Do it in every process; return what this one says.

        Of a pass (``single_value``) nobody waits for answers. Where it fails in one process, the
        others may be anywhere in it: the worker ends.
        """
        if single_value:
            result = self._of_a_pass(method, args, kwargs)
        else:
            self.ranks.ask(method, args, kwargs)
            result = super().collective_rpc(method, None, args, dict(kwargs or {}))
            self.ranks.wait()
        if not non_block:
            return result
        future = Future[Any]()
        future.set_result(result)
        return future

    def _of_a_pass(
        self,
        method: str | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        try:
            self.ranks.tell(method, args, kwargs)
            return super().collective_rpc(method, None, args, dict(kwargs or {}), False, True)
        except Exception as error:
            get_logger().error("vllm_failed", exc_info=error)
            end_process("vllm_failed", error=repr(error))

    def shutdown(self) -> None:
        """Shut every process down."""
        self.ranks.part()
        super().shutdown()
        self.ranks.close()
