"""Predictors of remaining lengths: samples, training, baselines, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from cli import main
from headway.errors import HeadwayError
from headway.request import SamplingParams
from models.lengths.baselines import fit_all, remaining_by
from models.lengths.card import card
from models.lengths.measure import PREDICTOR, SMOOTHED, as_served, measure, smoothed
from models.lengths.prompts import file_chats, task_chats
from models.lengths.samples import (
    SPLITS,
    Collected,
    SampledRequest,
    joined,
    load_samples,
    save_samples,
)
from models.lengths.train import (
    BATCHES,
    DEPTHS,
    RATES,
    WIDTHS,
    TrainSettings,
    layers_of,
    search_space,
    train,
)
from services.predictor.versions import load_version


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products gain nothing from more, and lose much beside others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def synthetic(num_requests: int = 120, seed: int = 0) -> Collected:
    """States that tell what remains in one of four numbers; longer prompts, longer outputs."""
    rng = np.random.default_rng(seed)
    requests, owners, generated, remaining = [], [], [], []
    for number in range(num_requests):
        total = int(rng.integers(30, 200))
        prompt = tuple(rng.integers(0, 50, size=max(1, total // 10 + int(rng.integers(5)))))
        requests.append(SampledRequest(tuple(map(int, prompt)), SamplingParams(seed=number), total))
        for at in range(1, total, 20):
            owners.append(number)
            generated.append(at)
            remaining.append(total - at)
    left = np.array(remaining, dtype=np.float32)
    hidden = rng.normal(size=(len(left), 4))
    hidden[:, 1] = left / 50
    return Collected(
        tuple(requests), hidden.astype(np.float16), np.array(owners), np.array(generated), left
    )


def test_a_request_never_stands_in_two_splits() -> None:
    samples = synthetic()
    owners = [set(samples.split(name).owners.tolist()) for name in SPLITS]
    assert all(owners)
    assert not any(one & other for one, other in combinations(owners, 2))
    assert sum(len(samples.split(name).remaining) for name in SPLITS) == len(samples.remaining)


def test_the_same_prompt_stands_in_one_split_however_it_was_drawn() -> None:
    cold, warm = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=5)
    for token in range(30):
        splits = {SampledRequest((token,), each, 9).split for each in (cold, warm)}
        assert len(splits) == 1


def test_samples_come_back_from_their_file(tmp_path: Path) -> None:
    samples = synthetic(10)
    save_samples(samples, tmp_path / "s.safetensors", {"model": "m"})
    again, about = load_samples(tmp_path / "s.safetensors")
    assert about == {"model": "m"}
    assert again.requests == samples.requests
    assert np.array_equal(again.hidden, samples.hidden)
    assert np.array_equal(again.remaining, samples.remaining)


def test_samples_of_several_files_are_one_set() -> None:
    parts = [synthetic(10, seed=1), synthetic(20, seed=2)]
    both = joined(parts)
    assert both.requests == (*parts[0].requests, *parts[1].requests)
    totals = np.array([request.num_output_tokens for request in both.requests])
    assert np.array_equal(totals[both.owners] - both.num_output_tokens, both.remaining)
    other = replace(parts[1], hidden=parts[1].hidden[:, :2])
    with pytest.raises(HeadwayError, match="widths"):
        joined([parts[0], other])


def test_a_file_that_holds_no_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("no")
    with pytest.raises(HeadwayError, match="headway predictor collect"):
        load_samples(tmp_path / "s")


def test_training_learns_what_the_states_tell_and_keeps_the_best_epoch() -> None:
    samples = synthetic()
    trained = train(samples, TrainSettings(num_epochs=25, patience=25, batch_size=16))
    assert len(trained.epochs) == 25
    assert trained.error < trained.epochs[0].validation_error / 3
    measured = measure(trained.network, fit_all(samples, num_epochs=2), samples)
    found = measured["mae"]["validation"]
    assert found[PREDICTOR] == pytest.approx(trained.error, abs=0.01)
    assert found[PREDICTOR] < found["prompt length"] < found["mean"]
    assert "| validation |" in card({"model": "m"}, trained.network, measured)


def test_a_network_of_states_alone_reads_no_counts() -> None:
    samples = synthetic(60)
    alone = train(samples, TrainSettings(num_epochs=2, counts=False)).network
    assert alone.shape.num_inputs == 4
    assert np.isfinite(alone.remaining(samples.hidden)).all()


def test_samples_are_measured_as_they_are_served() -> None:
    samples = synthetic(20)
    denser = replace(samples, num_output_tokens=1 + samples.num_output_tokens // 2)
    kept = as_served(denser, 10)
    assert 0 < len(kept.remaining) < len(denser.remaining)
    assert set((kept.num_output_tokens - 1) % 20) == {0}
    assert as_served(samples, 7) is samples


def test_the_tables_in_the_course_of_outputs_follow_the_same_requests() -> None:
    samples = synthetic(200)
    trained = train(samples, TrainSettings(num_epochs=2))
    measured = measure(trained.network, {}, samples)
    assert len({row["num_requests"] for row in measured["by_share"]}) == 1
    assert [row["to"] for row in measured["by_share"]] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    for band in measured["by_length"]:
        assert all(at + 20 <= band["from"] for at in band["mae"])
        assert all(np.isfinite(error) for error in band["mae"].values())


def test_training_stops_when_it_gets_no_better() -> None:
    samples = synthetic(40)
    noise = np.random.default_rng(1).permutation(samples.remaining)
    noisy = Collected(
        samples.requests, samples.hidden, samples.owners, samples.num_output_tokens, noise
    )
    trained = train(noisy, TrainSettings(num_epochs=200, patience=3, batch_size=16))
    assert len(trained.epochs) < 200
    best = min(trained.epochs, key=lambda epoch: epoch.validation_error)
    assert trained.epochs[-1].number == best.number + 3


def test_smoothing_mixes_a_prediction_with_the_earlier_ones() -> None:
    samples = synthetic(1)
    first = np.flatnonzero(samples.owners == 0)
    raw = samples.remaining.copy()
    raw[first[1]] += 40.0
    mixed = smoothed(raw, samples, 0.25)
    assert mixed[first[0]] == raw[first[0]]
    assert mixed[first[1]] == samples.remaining[first[1]] + 10.0
    assert np.array_equal(smoothed(raw, samples, 1.0), raw)


def test_too_few_requests_to_split_are_refused() -> None:
    with pytest.raises(HeadwayError, match="collect more"):
        train(synthetic(1), TrainSettings())


def test_baselines_count_down_and_stay_above_zero() -> None:
    samples = synthetic(60)
    for baseline in fit_all(samples, num_epochs=2).values():
        left = remaining_by(baseline, samples)
        assert (left >= 0).all()
        first = samples.owners == 0
        expected = baseline(samples.requests)[0]
        wanted = np.maximum(0, expected - samples.num_output_tokens[first])
        assert np.allclose(left[first], wanted)


def test_the_search_stays_in_the_papers_space_and_repeats_nothing() -> None:
    found = search_space(TrainSettings(seed=3), 40)
    assert len({(s.layers, s.rate, s.batch_size) for s in found}) == 40
    for settings in found:
        assert len(settings.layers) + 1 in DEPTHS
        assert settings.layers[0] in WIDTHS
        assert settings.rate in RATES
        assert settings.batch_size in BATCHES
    assert layers_of(4, 1024) == (1024, 256, 64)


def test_prompts_come_from_tasks_or_from_a_file(tmp_path: Path) -> None:
    assert len(task_chats(12, seed=1)) == 12
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "Hi"}\n\n{"messages": [{"role": "user", "content": "Ho"}]}\n')
    assert [chat[0]["content"] for chat in file_chats(path)] == ["Hi", "Ho"]
    path.write_text('{"prompt": "Hi"}\n{"text": 1}\n')
    with pytest.raises(HeadwayError, match="line 2"):
        file_chats(path)


def test_the_command_collects_trains_and_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, folder = str(tmp_path / "s.safetensors"), str(tmp_path / "p")
    collected = ["--num", "16", "--max-tokens", "60", "--every", "5", "--temperature", "0"]
    assert main(["predictor", "collect", "--out", samples, *collected]) == 0
    found, about = load_samples(Path(samples))
    assert about["every"] == 5
    assert {1, 6} <= set(found.num_output_tokens.tolist())
    totals = np.array([r.num_output_tokens for r in found.requests])[found.owners]
    assert np.array_equal(found.remaining, totals - found.num_output_tokens)
    save_samples(synthetic(60), Path(samples), {"model": "m"})
    assert main(["predictor", "train", samples, samples, "--out", folder, "--epochs", "3"]) == 0
    assert main(["predictor", "show", folder]) == 0
    assert "Remaining lengths of m" in capsys.readouterr().out
    version = load_version(Path(folder))
    curves = json.loads((Path(folder) / version.version / "curves.json").read_text())
    assert len(curves["trained"]["epochs"]) == 3


def test_the_small_models_predictor_is_far_better_than_the_prompts_length() -> None:
    folder = Path(__file__).resolve().parents[2] / "models" / "headway-mini" / "predictor"
    loaded = load_version(folder)
    assert loaded.network.shape.width == 192
    measured = json.loads((folder / loaded.version / "metrics.json").read_text())
    for split in ("validation", "test"):
        errors = measured["mae"][split]
        assert errors[PREDICTOR] < 0.6 * errors["prompt length"]
        assert errors[SMOOTHED] < errors[PREDICTOR]
