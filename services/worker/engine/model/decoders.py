"""The choice of a model's decoder, by the kernels between its matrix products."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from headway.errors import Code, HeadwayError
from services.worker.engine.cpu.operators import operators_for
from services.worker.engine.model.decoder import Decoder
from services.worker.engine.model.fixed_decoder import FixedDecoder
from services.worker.engine.model.native_decoder import NativeDecoder
from services.worker.engine.options import Kernels


def decoder_class(kernels: Kernels, dtype: torch.dtype, device: torch.device) -> type[Decoder]:
    """Choose a decoder by its kernels.

    ``auto`` takes Triton's on a GPU and compiled ones (native) on a CPU, or torch's operators if
    those are missing. A second name after a comma is of the kernels for prompts.
    Raises HeadwayError (FAILED_PRECONDITION) for kernels that are missing.
    """
    if kernels == "auto":
        return _best(dtype, device)
    if kernels == "torch":
        return Decoder
    if kernels == "native":
        if operators_for(dtype, device) is not None:
            return NativeDecoder
        needs = "a CPU, float32 or bfloat16, and a C++ compiler (g++)"
        raise _not_here(kernels, needs)
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not _has_triton() or not (device.type == "cuda" or is_interpreted):
        raise _not_here(kernels, "a GPU and triton (pip install triton)")
    return _triton() if kernels == "triton" else _flash(kernels)


def deterministic_class(
    kernels: Kernels, dtype: torch.dtype, device: torch.device
) -> type[Decoder]:
    """Return the decoder whose rows do not depend on each other.

    Raises HeadwayError (FAILED_PRECONDITION) with the way out where there is none.
    """
    if kernels not in ("auto", "native"):
        raise undetermined(f"kernels {kernels!r} have no such pass: leave kernels at 'auto'")
    if operators_for(dtype, device) is None:
        name = str(dtype).removeprefix("torch.")
        needs = "it needs a CPU, float32 or bfloat16, and a C++ compiler (g++)"
        raise undetermined(f"device is {device.type} and dtype {name}: {needs}")
    return FixedDecoder


def undetermined(why: str) -> HeadwayError:
    """Return the refusal of a deterministic pass."""
    message = f"deterministic cannot be served: {why}"
    return HeadwayError(Code.FAILED_PRECONDITION, message, param="deterministic")


def _best(dtype: torch.dtype, device: torch.device) -> type[Decoder]:
    if device.type == "cuda":
        return _triton() if _has_triton() else Decoder
    return Decoder if operators_for(dtype, device) is None else NativeDecoder


def _has_triton() -> bool:
    return find_spec("triton") is not None


def _triton() -> type[Decoder]:
    from services.worker.engine.model.kernel_decoder import KernelDecoder  # it imports Triton

    return KernelDecoder


def _flash(kernels: str) -> type[Decoder]:
    from services.worker.engine.gpu.flash import has_flash_attention
    from services.worker.engine.model.flash_decoder import FlashDecoder

    if not has_flash_attention():
        raise _not_here(kernels, "flash-attn-4 (pip install flash-attn-4)")
    return FlashDecoder


def _not_here(kernels: str, needs: str) -> HeadwayError:
    message = f"kernels {kernels!r} need {needs}; 'auto' takes what there is"
    return HeadwayError(Code.FAILED_PRECONDITION, message, param="kernels")
