"""Copies between the host and a device that nobody waits for.

A plain copy to a GPU waits for what is queued there before it. These go through pinned memory and
take their place in the queue.
"""

from __future__ import annotations

import torch


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a host's tensor on a device; a GPU takes it when it comes to it."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def fetched(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the host's memory; a GPU's is there once it has done what is queued."""
    if not tensor.is_cuda:
        return tensor
    home = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return home.copy_(tensor, non_blocking=True)
