"""Every way to train at one privacy: targets met, orders, what cannot be chosen from."""

import math

import numpy as np
import pytest

from privproj import InvalidParameterError, UnsupportedError, choose, epsilon, update_utility
from privproj.accounting.utility import _mean_root_of_beta

RUN = {"steps": 300, "sampling_rate": 0.02}


@pytest.mark.parametrize(("a", "b"), [(0.5, 3.0), (2.0, 30.0), (8.0, 380.0), (32.0, 1.0)])
def test_mean_root_of_beta_variable(a, b):
    drawn = np.sqrt(np.random.default_rng(0).beta(a, b, 400_000))
    assert _mean_root_of_beta(a, b) == pytest.approx(drawn.mean(), abs=5 * drawn.std() / math.sqrt(400_000))


@pytest.mark.full
def test_every_choice_meets_target_with_noise_of_its_query():
    rows = choose(layers=("96x8x2:32", "64x8"), ranks=(4, 16), epsilon=2.0, delta=1e-5, **RUN)
    assert [row.utility.error for row in rows] == sorted(row.utility.error for row in rows)
    names = {(row.name, row.rank) for row in rows}
    assert {("dp-sgd", None), ("m2", 4), ("m2 per-layer", 16)} <= names
    assert {("m2-projected-clip", 4), ("projected-dp-sgd", 16)} <= names
    for row in rows:
        assert epsilon(row.mechanism, delta=1e-5, **RUN).value <= 2.0
        assert row.result.value == row.mechanism.noise_multiplier
        assert row.utility.released <= row.utility.of == 96 * 32 * 2 + 64 * 64
    (plain,) = (row for row in rows if row.name == "dp-sgd")
    assert plain.utility.error == 1.0 and plain.utility.projection_error == 0.0


def test_one_layer_has_mechanisms_of_programs_of_ones_own_too():
    rows = choose(layers="64x8", epsilon=2.0, delta=1e-5, **RUN)
    assert {row.mechanism.name for row in rows} == {"gaussian", "m1", "m2", "sketch-public"}
    (m2,) = (row for row in rows if row.name == "m2")
    again = update_utility(m2.mechanism, epsilon=2.0, delta=1e-5, **RUN)
    assert m2.utility.as_dict() == pytest.approx(again.as_dict(), rel=1e-6)


@pytest.mark.parametrize("rank", [16, 256, 1000])
def test_projected_dp_sgd_needs_less_noise_than_known_m1(rank):
    rows = {row.name: row for row in choose(layers=f"1024x{rank}", epsilon=2.0, delta=1e-5)}
    in_range = math.sqrt(rank / 1024)  # the part of M1's noise that the projection on the range of the matrix keeps
    m1 = rows["m1 (own program)"].utility.noise_over_dp_sgd * in_range
    assert 1.0 < rows["projected-dp-sgd"].utility.noise_over_dp_sgd < m1


@pytest.mark.full
def test_epochs_count_their_batches():
    run = {"steps": 3, "sampling": "balls-in-bins", "batches": 50}
    rows = choose(layers="64x8", epsilon=2.0, delta=1e-5, **run)
    assert {row.utility.releases for row in rows} == {150}


@pytest.mark.parametrize(
    ("given_", "word"),
    [({"layers": "64x64"}, "below its dimension"), ({"layers": "64x8", "ranks": (0,)}, "ranks"),
     ({"layers": "64"}, "layer"), ({"layers": "64x8", "epsilon": -1.0}, "epsilon")],
)  # fmt: skip
def test_choose_rejects_unsupported_mechanisms(given_, word):
    with pytest.raises((InvalidParameterError, UnsupportedError), match=word):
        choose(**{"epsilon": 1.0, "delta": 1e-5, **given_})
