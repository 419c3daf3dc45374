"""Spectra, tilts and plain convolution agree within their errors."""

import math

import numpy as np
from helpers import gaussian

from privproj.composition import dominating_pairs, fourier
from privproj.runs import Run


def test_sparse_and_full_spectra_agree_within_their_errors(monkeypatch):
    run = Run(steps=400, sampling_rate=0.02)
    profile = gaussian(1.0)
    shape = dominating_pairs.outline_step(profile, run)
    pair = dominating_pairs.step_pairs(profile, run, shape, shape.deviation / 64).above
    sparse = fourier.Composition([(pair, run.steps)])
    theta = sparse.tilt_for_delta(math.log(1e-6))
    assert len(sparse.tilted_sum(theta).frequencies) < 2000
    monkeypatch.setattr(fourier.TiltedSum, "wanted_frequencies", lambda self: None)
    full = fourier.Composition([(pair, run.steps)])
    assert len(full.tilted_sum(theta).frequencies) > 2000 or full.tilted_sum(theta).length > 2**14
    for eps in (0.5, 1.0, 1.5, 2.0):
        one, two = sparse.tilted_sum(theta).delta(eps), full.tilted_sum(theta).delta(eps)
        assert abs(one.value - two.value) <= one.error + two.error
        assert one.error < 1e-6 * one.value


def test_any_tilt_gives_a_sound_answer():
    profile, run = gaussian(10.0), Run(steps=100)
    shape = dominating_pairs.outline_step(profile, run)
    pair = dominating_pairs.step_pairs(profile, run, shape, shape.deviation / 64).above
    whole = fourier.Composition([(pair, 100)])
    best = whole.delta(2.0)
    for theta in (0.01, 0.5, 2.0, 6.0, 20.0):
        found = whole.tilted_sum(theta).delta(2.0)
        assert abs(found.value - best.value) <= found.error + best.error


def test_convolution_without_fourier_agrees():
    profile, run = gaussian(1.5), Run(steps=4, sampling_rate=0.2)
    shape = dominating_pairs.outline_step(profile, run)
    pair = dominating_pairs.step_pairs(profile, run, shape, 0.02).above
    dense = np.zeros(int(pair.cells[-1] - pair.cells[0]) + 1)
    dense[pair.cells - pair.cells[0]] = pair.masses
    law = dense
    for _ in range(3):
        law = np.convolve(law, dense)
    losses = pair.step * (4 * pair.cells[0] + np.arange(len(law)))
    whole = fourier.Composition([(pair, 4)])
    for eps in (0.0, 0.31, 1.0, 4.0, 8.0):
        direct = float(law[losses > eps] @ -np.expm1(eps - losses[losses > eps]))
        found = whole.delta(eps)
        assert abs(found.value - direct) <= found.error + 1e-12 * direct
