"""Compiled kernels are built once for this user, and are done without where they cannot be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from headway.errors import Code, HeadwayError
from headway.request import SamplingParams
from services.worker.engine.cpu import build
from services.worker.engine.model.decoder import Decoder
from services.worker.engine.model.decoders import decoder_class
from services.worker.engine.model.native_decoder import NativeDecoder
from tests.fakes.engine_rig import Run, Schedule, load, prompt
from tests.fakes.kernel_reference import HAS_COMPILER

CPU = torch.device("cpu")
if not HAS_COMPILER:
    pytest.skip("compiled kernels need a C++ compiler", allow_module_level=True)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Built in a third of the time; whether it is fast is not asked here.
    monkeypatch.setattr(build, "_FLAGS", tuple(f for f in build._FLAGS if f != "-O3"))
    return tmp_path / "headway" / "kernels"


def test_it_is_kept_however_many_build_it_at_once(cache_folder: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        loaded = list(pool.map(lambda _: build._load(), range(3)))
    assert all(hasattr(each, "rms_norm_float32") for each in loaded)
    (built,) = cache_folder.iterdir()
    status = built.stat()
    build._load()
    assert built.stat().st_mtime_ns == status.st_mtime_ns


@pytest.mark.parametrize("levels", [0, 1])
def test_a_folder_that_others_may_change_is_not_loaded_from(
    cache_folder: Path, levels: int
) -> None:
    cache_folder.mkdir(parents=True)
    (cache_folder, *cache_folder.parents)[levels].chmod(0o777)
    assert hasattr(build._load(), "rms_norm_float32")
    assert not list(cache_folder.parent.rglob("*.so"))


def test_a_kept_library_that_cannot_be_loaded_is_built_anew(cache_folder: Path) -> None:
    build._load()
    (built,) = cache_folder.iterdir()
    built.unlink()
    built.write_bytes(b"of another system")
    assert hasattr(build._load(), "rms_norm_float32")


@pytest.mark.parametrize("compiler", ["/nowhere/c++", "false", "c++ 'unbalanced"])
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
    assert not list(cache_folder.parent.rglob("*.so"))


def test_who_is_asked_for_and_what_there_is() -> None:
    assert decoder_class("auto", torch.bfloat16, CPU) is NativeDecoder
    assert decoder_class("native", torch.float32, CPU) is NativeDecoder
    assert decoder_class("torch", torch.float32, CPU) is Decoder
    assert decoder_class("auto", torch.float16, CPU) is Decoder
    assert build.library() is not None, "the sources do not build"
    with pytest.raises(HeadwayError, match="float32 or bfloat16"):
        decoder_class("native", torch.float16, CPU)


def test_tritons_kernels_are_refused_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(HeadwayError, match="a GPU and triton"):
        decoder_class("triton", torch.float32, CPU)


def test_without_kernels_nothing_is_compiled(
    llama: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_load", lambda: pytest.fail("it was told to do without"))
    build.library.cache_clear()
    try:
        engine = load(llama, num_blocks=16, kernels="torch")
        run = Run(prompt(5), 4, SamplingParams(temperature=0.0, presence_penalty=1.0))
        Schedule(engine).complete([run])
    finally:
        build.library.cache_clear()
    assert engine.info.kernels == "torch"
    assert not cache_folder.exists()


def test_quantised_weights_have_no_such_kernels(llama: str) -> None:
    with pytest.raises(HeadwayError, match="leave kernels at 'auto'"):
        load(llama, num_blocks=16, kernels="native", quantization="torchao-int8")
