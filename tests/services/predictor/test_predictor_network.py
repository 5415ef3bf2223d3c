"""The predictor's network: its normalisation, and a faster copy that says the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.errors import HeadwayError
from services.predictor.network import (
    PAPER_LAYERS,
    LengthNetwork,
    NetworkShape,
    default_layers,
    parameter_count,
)


def network(width: int, layers: tuple[int, ...]) -> LengthNetwork:
    torch.manual_seed(1)
    return LengthNetwork(NetworkShape(width, layers)).eval()


def test_the_papers_network_has_the_papers_size() -> None:
    assert default_layers(3584) == PAPER_LAYERS
    assert round(parameter_count(PAPER_LAYERS, 3584) / 1e6, 1) == 8.4
    made = sum(each.numel() for each in network(3584, PAPER_LAYERS).parameters())
    assert made == parameter_count(PAPER_LAYERS, 3584)


def test_constants_are_taken_from_the_data() -> None:
    rng = np.random.default_rng(0)
    hidden = (5 + 3 * rng.standard_normal((500, 4))).astype(np.float16)
    made = network(4, (8,))
    made.normalise_by(made.inputs(hidden), np.full(500, 250.0, dtype=np.float32))
    assert made.input_mean.tolist() == pytest.approx([5.0] * 4, abs=0.5)
    assert (1 / made.input_scale).tolist() == pytest.approx([3.0] * 4, abs=0.5)
    assert made.target_scale == 250.0


def test_the_copy_for_scoring_says_nearly_the_same() -> None:
    made = network(1024, (1024, 64))
    made.target_scale.fill_(1000.0)
    states = np.random.default_rng(0).standard_normal((10, 1024)).astype(np.float16)
    assert np.allclose(made.for_scoring().remaining(states), made.remaining(states), atol=5.0)


def test_a_state_of_another_width_is_refused() -> None:
    with pytest.raises(HeadwayError, match="width is 5"):
        network(4, (8,)).remaining(np.zeros((1, 5), dtype=np.float16))


def test_one_that_reads_counts_says_nothing_without_them() -> None:
    torch.manual_seed(1)
    made = LengthNetwork(NetworkShape(4, (8,), counts=True)).eval()
    made.layers[-1].bias.data.fill_(5.0)  # type: ignore[operator]  # a linear layer
    hidden = np.ones((3, 4), dtype=np.float16)
    counts = np.array([[10, 1], [10, 400], [np.nan, 1]], dtype=np.float32)
    found = made.remaining(hidden, counts)
    assert found[0] != found[1]
    assert np.isnan(found).tolist() == [False, False, True]
    assert np.isnan(made.remaining(hidden)).all()


@pytest.mark.parametrize(("width", "layers"), [(0, (8,)), (4, ()), (4, (0,)), (4, (8,) * 9)])
def test_an_impossible_shape_is_refused(width: int, layers: tuple[int, ...]) -> None:
    with pytest.raises(HeadwayError):
        NetworkShape(width, layers)
