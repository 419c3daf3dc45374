"""Noise and projection error of the updates of every algorithm, against draws of the release code itself (C38)."""

import math

import pytest
from helpers import needs

from privproj import M2, Layer, choose

torch = needs("torch", "opacus")

from unit.training.helpers import DOUBLE, data, private  # noqa: E402

from privproj.training.generators import streams  # noqa: E402

TOLERANCE = 0.03
SHAPES = [(24, 12, 3), *(pytest.param(*shape, marks=pytest.mark.slow) for shape in [(64, 16, 8), (48, 12, 24)])]


def view_of(algorithm, inputs, outputs, rank, **more):
    layer = torch.nn.Linear(inputs, outputs, bias=False).double()
    x, y = data(width=inputs)
    _, optimizer, _ = private(layer, x, y % outputs, algorithm=algorithm, rank=rank, **more)
    (found,) = optimizer._views
    return found


def moments(view, gradients, clip, draws):
    """E U and E|U|^2 without noise, and the energy of the update of unit noise, over draws of the release."""
    drawn, noise = streams(insecure_seed=1), torch.Generator().manual_seed(2)
    inputs = gradients.shape[2]
    mean, square, energy = torch.zeros(gradients.shape[1:], dtype=DOUBLE), 0.0, 0.0
    for _ in range(draws):
        view.refresh(drawn)
        records = view.sketched(gradients)
        norms = gradients.flatten(1).norm(dim=1) if not view.clips_what_it_sums else records.flatten(1).norm(dim=1)
        left, right = view.update((records * (clip / norms).clamp(max=1.0)[:, None, None]).sum(0))
        update = left if right is None else left @ right
        mean += update / draws
        square += float(update.square().sum()) / draws
        view.fresh = True
        left, right = view.update(torch.randn(view.shape, generator=noise, dtype=DOUBLE))
        energy += float((left if right is None else left @ right).square().sum()) / draws
        assert update.shape[1] == inputs
    return mean, square, energy


def gradients_of(outputs, inputs, spectrum):
    """Eight copies of one gradient of norm 1 with these squared singular values."""
    draw = torch.Generator().manual_seed(outputs + inputs + len(spectrum))
    u = torch.linalg.qr(torch.randn(outputs, len(spectrum), generator=draw, dtype=DOUBLE))[0]
    v = torch.linalg.qr(torch.randn(inputs, len(spectrum), generator=draw, dtype=DOUBLE))[0]
    sizes = torch.tensor(spectrum, dtype=DOUBLE)
    return ((u * (sizes / sizes.sum()).sqrt()) @ v.T).expand(8, -1, -1)


@pytest.mark.full
@pytest.mark.parametrize("spectrum", [[1.0], [4.0, 2.0, 1.0], [1.0] * 12])
@pytest.mark.parametrize(("inputs", "outputs", "rank"), SHAPES)
def test_m2_adds_the_error_of_its_lift(inputs, outputs, rank, spectrum):
    s = gradients_of(outputs, inputs, spectrum)
    lift = M2(layers=(Layer(dim=inputs, rank=rank, columns=outputs),)).lift()
    # A share of the noise of a Wishart frame is more than the Haar frame's: 1 + (d + 1)/r for d/r.
    factors = {"haar": lift.factor, "wishart": 1.0 + (inputs + 1) / rank}
    for frame, factor in factors.items():
        view = view_of("m2", inputs, outputs, rank, frame=frame)
        mean, square, energy = moments(view, s, 1.0, 4000)
        whole = float(s.sum(0).square().sum())
        assert torch.allclose(mean, s.sum(0), atol=0.5)
        assert square / whole == pytest.approx(factor, rel=TOLERANCE)
        assert math.sqrt(energy / (inputs * outputs)) == pytest.approx(math.sqrt(factor), rel=TOLERANCE)
    assert lift.noise == pytest.approx(math.sqrt(lift.factor), rel=1e-12)
    assert (lift.released, lift.of) == (outputs * rank, outputs * inputs)


@pytest.mark.full
@pytest.mark.parametrize(("inputs", "outputs", "rank"), SHAPES)
@pytest.mark.parametrize("algorithm", ["m2-projected-clip", "projected-dp-sgd"])
def test_rank_one_records_are_worst_for_projected_clipping(inputs, outputs, rank, algorithm):
    rows = choose(layers=Layer(dim=inputs, rank=rank, columns=outputs), epsilon=1.0, delta=1e-5)
    (row,) = (row for row in rows if row.algorithm == algorithm)
    stretch = row.utility.noise_over_dp_sgd
    clip = 1e-3
    for spectrum in ([1.0], [4.0, 2.0, 1.0], [1.0] * 12):
        s = gradients_of(outputs, inputs, spectrum)
        mean, square, energy = moments(view_of(algorithm, inputs, outputs, rank), s, clip, 4000)
        # U = a S on average, where DP-SGD of the same clip has C S/|S|.
        a = float((mean * s[0]).sum()) / (8 * clip)
        noise, factor = math.sqrt(energy / (inputs * outputs)) / a, square / (8 * clip * a) ** 2
        if len(spectrum) == 1:
            assert noise == pytest.approx(stretch, rel=TOLERANCE)
            assert factor == pytest.approx(1.0 + row.utility.projection_error, rel=TOLERANCE)
        assert noise <= stretch * (1.0 + TOLERANCE)
        assert factor <= (1.0 + row.utility.projection_error) * (1.0 + TOLERANCE)


def test_projected_dp_sgd_leaves_out_noise_outside_its_range():
    view = view_of("projected-dp-sgd", 64, 16, 8)
    view.refresh(streams(insecure_seed=1))
    left, right = view.update(torch.randn(16, 64, dtype=DOUBLE, generator=torch.Generator().manual_seed(3)))
    assert torch.linalg.matrix_rank(left @ right) == 8
    g = torch.randn(5, 16, 64, dtype=DOUBLE)
    left, right = view.update(view.sketched(g).sum(0))
    assert torch.allclose(left @ right, view.sketched(g).sum(0), rtol=1e-9, atol=1e-9)
