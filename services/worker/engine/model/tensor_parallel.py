"""One replica over several processes, started by torchrun: each holds its share of the heads.

transformers' own ``tp_plan`` assigns the weights. The first process is the worker. The others
follow it: they receive every forward pass and run their share of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import distributed

from headway.errors import Code, HeadwayError
from services.worker.engine.cpu.linear import Linear


def group_size(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes of this replica under torchrun; 1 without it."""
    return int(environ.get("WORLD_SIZE", "1"))


def is_follower(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process holds a share of another process's model."""
    return int(environ.get("RANK", "0")) > 0


def join_group(device: torch.device) -> torch.device:
    """Join the other processes, if there are any; return this process's device."""
    if group_size() == 1:
        return device
    is_cuda = device.type == "cuda"
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if is_cuda else "gloo")
    if is_cuda and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


def leave_group() -> None:
    """Leave the group: its threads would otherwise abort the process at its exit."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def agree_on_least(number: int, device: torch.device) -> int:
    """Return the least of all processes' numbers."""
    if group_size() == 1:
        return number
    shared = torch.tensor([number], device=device)
    distributed.all_reduce(shared, distributed.ReduceOp.MIN)
    return int(shared)


def share_of_heads(config: Any) -> tuple[int, int]:
    """Return this process's (heads, KV heads); FAILED_PRECONDITION if they cannot be shared."""
    size = group_size()
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if kv_heads % size or heads % size:
        message = (
            f"{size} processes cannot share {heads} heads and {kv_heads} KV heads evenly: start "
            "torchrun with a number of processes that divides both"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="nproc-per-node")
    return heads // size, kv_heads // size


def own_share(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's share of a weight that is shared out, else the weight."""
    if not _is_shared(tensor):
        return tensor
    share: torch.Tensor = cast(Any, tensor).to_local()
    return share


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a weight that is shared out; every process must call this."""
    if not _is_shared(tensor):
        return tensor
    full: torch.Tensor = cast(Any, tensor).full_tensor()
    return full


def _is_shared(tensor: torch.Tensor) -> bool:
    if group_size() == 1:
        return False
    from torch.distributed.tensor import DTensor  # it imports sympy, most of a second

    return isinstance(tensor, DTensor)


class SummedLinear(Linear):
    """A product whose inputs are shared out: the parts of all processes are summed."""

    def added_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return ``residual`` plus the sum of all processes' products."""
        product = self.without_bias(rows)
        distributed.all_reduce(product)
        if self.bias is not None:
            product = product + self.bias
        return residual + product


def tell_followers(message: object) -> None:
    """Send the other processes their next order; None: to end."""
    distributed.broadcast_object_list([message], src=0)


def next_order() -> Any:
    """Return the next order of the worker's process."""
    received: list[Any] = [None]
    distributed.broadcast_object_list(received, src=0)
    return received[0]
