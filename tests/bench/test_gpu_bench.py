"""The GPU benchmark's arithmetic, and a dry run of all of it on a CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from bench.card.cases import SHAPES, Case, Shape, least_seconds, num_bytes, num_flops, row
from bench.card.checkpoint import save_checkpoint
from bench.card.choices import best_by_kind
from bench.card.cluster import FULL, SMALL, TOPOLOGIES, CardLoad
from bench.card.peer import decode_seconds
from bench.card.shares import kind_of
from bench.gpu import main
from cli import command_line
from headway.errors import HeadwayError
from models.tokenizer import VOCAB_SIZE

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


def dry_run(folder: Path, *step: str) -> dict[str, Any]:
    """Run a step without a card; nothing of it may be left out but what only a card has."""
    path = folder / "report.json"
    told = ("--shape", "tiny", "--device", "cpu", "--repeats", "1", "--minutes", "30")
    main([*step, *told, "--folder", str(folder / "work"), "--json", str(path)])
    report: dict[str, Any] = json.loads(path.read_text())
    assert set(report["not_done"]) <= {"flash-attn-4"}
    return report


def test_a_dry_run_fills_the_whole_report(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    report = dry_run(tmp_path)
    assert {line["block_size"] for line in report["kernel_checks"]} == {16, 64}
    assert report["device"]["card"] is None
    assert len(report["profile"]) == 3
    assert {line["kind"] for line in report["rows"]} == {"decode", "prefill", "mixed"}
    for line in report["rows"]:
        assert line["seconds"] > 0
        assert line["roofline_share"] == line["roofline_seconds"] / line["seconds"]
        assert (line["peer_seconds"] is None) == (line["peer_not_measured"] is not None)


def test_a_dry_run_compares_block_sizes_backends_and_recorded_sizes(tmp_path: Path) -> None:
    report = dry_run(tmp_path, "choices")
    assert set(report["seconds_by_block_size"]) == {"16", "64", "128"}
    assert set(report["best_block_size"]) == {"decode", "prefill", "mixed"}
    assert set(report["graphs"]) == {"none"}  # without a card nothing is recorded
    by_backend = report["prompts_by_backend"]
    assert {line["block_size"] for line in by_backend} == {16, 64, 128}
    assert all(line["error"] < 1e-5 and line["seconds"] > 0 for line in by_backend)
    assert report["flash_attn_4"] is None


def test_a_dry_run_splits_passes_and_drives_the_core_in_turn_and_ahead(tmp_path: Path) -> None:
    report = dry_run(tmp_path, "shares")
    assert [line["batch"] for line in report["kinds"]] == [1, 16, 64]
    assert all(line["seconds_by_kind"]["products"] > 0 for line in report["kinds"])
    assert [line["batch"] for line in report["ahead"]] == [1, 16, 64]
    for line in report["ahead"]:
        assert line["seconds_per_pass_ahead"] > 0
        assert line["seconds_per_pass_in_turn"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_dry_run_serves_a_crowd_and_three_shares_of_what_it_carries(tmp_path: Path) -> None:
    report = dry_run(tmp_path, "cluster", "--parts", "unified")
    loads = [report["unified"][load] for load in ("crowd", "30%", "60%", "90%")]
    assert all(load["num_finished"] == load["num_requests"] > 0 for load in loads)


@pytest.mark.parametrize("load", [FULL, SMALL])
def test_the_commands_of_the_cluster_know_their_flags(load: CardLoad) -> None:
    deployment = ("--model", "m", "--device", "cuda")
    for command in (
        ("profile", "run", *deployment, "--out", "p.toml"),
        ("profile", "check", *deployment, *load.check, "--profile", "p.toml"),
        ("demo", *deployment, *load.demo),
        *(("up", *deployment, *flags) for flags in TOPOLOGIES.values()),
    ):
        assert command_line().parse_args(command).device == "cuda"


def test_a_random_checkpoint_speaks_in_words_and_never_ends_by_itself(tmp_path: Path) -> None:
    shape = replace(SHAPES["tiny"], vocab_size=VOCAB_SIZE + 40)
    folder = save_checkpoint(tmp_path / "m", shape, 128, torch.device("cpu"), "float32")
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["max_position_embeddings"]) == (shape.vocab_size, 128)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert all(tokenizer.decode([token_id]) for token_id in range(VOCAB_SIZE, shape.vocab_size))
    assert tokenizer.token_to_id("</think>") == 260
    before = (folder / "config.json").stat().st_mtime_ns
    save_checkpoint(folder, shape, 128, torch.device("cpu"), "float32")
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_a_small_vocabulary_still_holds_the_tokenizers_own_ids(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, SHAPES["tiny"], 64, torch.device("cpu"), "float32")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == VOCAB_SIZE


def test_the_best_block_size_counts_only_those_that_ran_every_pass_of_a_kind() -> None:
    decode, prefill = Case(1, 16), Case(num_rows=8)
    found = {
        "16": {str(decode): 2.0, str(prefill): 1.0},
        "64": {str(decode): 1.0},
        "128": {str(decode): 1.0, str(prefill): 3.0},
    }
    assert best_by_kind(found, [decode, prefill]) == {"decode": "64", "prefill": "16"}
    assert best_by_kind({}, [decode]) == {"decode": None}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_128x128_64x6", "products"),
        ("void cublasLt::splitKreduce_kernel", "products"),
        ("_attend", "attention"),
        ("_rope_store", "between products"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("void at::native::reduce_kernel", "other"),
    ],
)
def test_a_kernel_has_a_kind_by_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_step_that_does_not_exist_or_has_no_such_part_is_refused() -> None:
    with pytest.raises(HeadwayError, match="among kinds, ahead"):
        main(["shares", "--device", "cpu", "--shape", "tiny", "--parts", "engine"])
    with pytest.raises(SystemExit):
        main(["everything"])
