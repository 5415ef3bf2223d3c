"""Compiled kernels are built once for this user, and are done without where they cannot be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from headway.errors import Code, HeadwayError
from services.worker.engine.decoder import Decoder
from services.worker.engine.decoders import decoder_class
from services.worker.engine.native import build
from services.worker.engine.native_decoder import NativeDecoder

CPU = torch.device("cpu")
if build.library() is None:
    pytest.skip("compiled kernels need a C++ compiler", allow_module_level=True)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "headway" / "kernels"


def test_it_is_built_once_however_many_ask_at_once(cache_folder: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        loaded = list(pool.map(lambda _: build._load(), range(3)))
    assert all(hasattr(each, "rms_norm_float32") for each in loaded)
    (built,) = cache_folder.iterdir()
    status = built.stat()
    build._load()
    assert built.stat() == status or built.stat().st_mtime_ns == status.st_mtime_ns


def test_a_folder_that_others_may_write_is_not_loaded_from(cache_folder: Path) -> None:
    cache_folder.mkdir(parents=True)
    cache_folder.chmod(0o777)
    assert hasattr(build._load(), "rms_norm_float32")
    assert not list(cache_folder.iterdir())


@pytest.mark.parametrize("compiler", ["/nowhere/c++", "false"])
def test_without_a_compiler_torchs_operators_compute(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    build.library.cache_clear()
    try:
        assert build.library() is None
        assert decoder_class("auto", torch.float32, CPU) is Decoder
        with pytest.raises(HeadwayError, match="C\\+\\+ compiler") as refused:
            decoder_class("native", torch.float32, CPU)
    finally:
        build.library.cache_clear()
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert not list(cache_folder.iterdir())


def test_who_is_asked_for_and_what_there_is() -> None:
    assert decoder_class("auto", torch.bfloat16, CPU) is NativeDecoder
    assert decoder_class("native", torch.float32, CPU) is NativeDecoder
    assert decoder_class("torch", torch.float32, CPU) is Decoder
    assert decoder_class("auto", torch.float16, CPU) is Decoder
    with pytest.raises(HeadwayError, match="float32 or bfloat16"):
        decoder_class("native", torch.float16, CPU)
