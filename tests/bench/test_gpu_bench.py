"""The GPU benchmark's arithmetic, and a dry run of all of it on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.card.cases import SHAPES, Case, Shape, least_seconds, num_bytes, num_flops, row
from bench.card.peer import decode_seconds
from bench.gpu import main

LLAMA = SHAPES["llama-8b"]


def test_the_llama_shape_has_llamas_sizes() -> None:
    weights = LLAMA.num_layers * LLAMA.layer_weights + 2 * LLAMA.vocab_size * LLAMA.hidden_size
    assert round(weights / 1e9, 1) == 8.0
    assert LLAMA.kv_bytes_per_token == 128 * 1024


def test_a_decode_pass_reads_the_weights_once_and_every_context() -> None:
    shape = Shape(1, 2, 3, 1, 1, 2, vocab_size=5, max_model_len=9)
    weights = 2 * 2 * (3 + 1) + 3 * 2 * 3 + 5 * 2
    assert num_bytes(shape, Case(4, 7)) == 2 * weights + (4 * 7 + 4) * 2 * 2 * 2
    assert num_flops(shape, Case(1, 7)) == 2 * weights + 2 * 2 * 7 * 2


def test_a_prompts_rows_attend_to_what_is_before_them() -> None:
    without = num_flops(LLAMA, Case(num_rows=10))
    after = num_flops(LLAMA, Case(num_rows=10, start=100))
    assert after - without == 4 * 32 * 32 * 128 * 10 * 100


def test_the_busier_of_memory_and_arithmetic_sets_the_least_time() -> None:
    decode, prefill = Case(1, 1024), Case(num_rows=8192)
    assert least_seconds(LLAMA, decode, 1e12, 1e15) == num_bytes(LLAMA, decode) / 1e12
    assert least_seconds(LLAMA, prefill, 1e12, 1e15) == num_flops(LLAMA, prefill) / 1e15


def test_what_was_not_measured_is_none_with_its_reason() -> None:
    found = row(Case(2, 16), 0.5, None, 2.0, why_not="no time left")
    assert found["seconds"] is None
    assert found["roofline_share"] is None
    assert found["times_as_fast_as_peer"] is None
    assert found["not_measured"] == "no time left"
    measured = row(Case(2, 16), 0.5, 1.0, 2.0)
    assert measured["roofline_share"] == 0.5
    assert measured["times_as_fast_as_peer"] == 2.0


def test_a_decode_interval_counts_only_while_all_requests_decode() -> None:
    assert decode_seconds([[0.0, 5.0, 6.0, 7.0], [5.0, 6.0, 7.0, 30.0]]) == 1.0
    assert decode_seconds([[0.0, 1.0], [2.0, 3.0]]) is None


def test_the_kernels_checks_agree_with_the_kernels() -> None:
    if not pytest.importorskip("triton").knobs.runtime.interpret:
        pytest.skip("the benchmark itself runs them on a GPU")
    from bench.card.kernels import check

    cases = (Case(3, 70), Case(num_rows=19, start=40))
    found = check(SHAPES["tiny"], torch.device("cpu"), ("float32",), cases)
    assert [line["kind"] for line in found if float(str(line["error"])) < 1e-6] == [
        "decode",
        "prefill",
    ]


def test_a_dry_run_fills_the_whole_report(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "report.json"
    arguments = ["--shape", "tiny", "--device", "cpu", "--repeats", "1", "--json", str(path)]
    main(arguments)
    report = json.loads(path.read_text())
    assert report["device"]["card"] is None
    assert len(report["profile"]) == 3
    assert {line["kind"] for line in report["rows"]} == {"decode", "prefill", "mixed"}
    for line in report["rows"]:
        assert line["seconds"] > 0
        assert line["roofline_share"] == line["roofline_seconds"] / line["seconds"]
        assert (line["peer_seconds"] is None) == (line["peer_not_measured"] is not None)
