"""Quantised weights, by the libraries that transformers works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from headway.errors import Code, HeadwayError, invalid


def _torchao(config: str) -> Callable[[], Any]:
    def make() -> Any:
        schemes: Any = import_module("torchao.quantization")
        return _transformers().TorchAoConfig(getattr(schemes, config)())

    return make


def _bitsandbytes(**options: bool) -> Callable[[], Any]:
    def make() -> Any:
        import_module("bitsandbytes")
        return _transformers().BitsAndBytesConfig(**options)

    return make


def _transformers() -> Any:
    return import_module("transformers")


SCHEMES: Mapping[str, Callable[[], Any]] = {
    "torchao-int8": _torchao("Int8WeightOnlyConfig"),
    "torchao-float8": _torchao("Float8WeightOnlyConfig"),
    "bitsandbytes-8bit": _bitsandbytes(load_in_8bit=True),
    "bitsandbytes-4bit": _bitsandbytes(load_in_4bit=True),
}
"""Schemes by name."""


def quantization_config(name: str) -> Any:
    """Return transformers' configuration of a scheme, None for no name.

    HeadwayError: INVALID_ARGUMENT for an unknown one, FAILED_PRECONDITION without its library.
    """
    if not name:
        return None
    if name not in SCHEMES:
        raise invalid("quantization", name, f"one of {', '.join(SCHEMES)}")
    try:
        return SCHEMES[name]()
    except ImportError as error:
        library = name.partition("-")[0]
        message = f"quantization {name!r} needs {library}: pip install {library}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="quantization") from error
