"""Audits of trained models."""

import numpy as np
import pytest

from privproj.contrib.audit.epsilon_lower import auc
from privproj.errors import InvalidParameterError


@pytest.mark.slow
def test_canary_without_noise_is_seen_and_with_much_noise_is_not(membership):
    games = [membership.Game(noise_multiplier=z, rank=32, steps=10, records=50, seed=1) for z in (0.0, 200.0)]
    loud, quiet = (membership.poisoned(game, 12, workers=1) for game in games)
    assert auc(*loud) > 0.95 and abs(auc(*quiet) - 0.5) < 0.35
    assert games[0].claim(1e-3) is None and games[1].claim(1e-3) > 0.0


@pytest.mark.full
def test_journal_makes_audit_resumable(membership, tmp_path):
    game, path = membership.Game(mechanism="dp-sgd", rank=None, steps=3, records=20, seed=3), tmp_path / "journal"
    whole = membership.poisoned(game, 6, workers=1, journal=path)
    lines = path.read_text().splitlines()
    assert len(lines) == 13
    path.write_text("\n".join(lines[:8]) + "\n5,0.2")
    again = membership.poisoned(game, 6, workers=1, journal=path)
    assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))
    with pytest.raises(InvalidParameterError, match="journal of the same query"):
        membership.poisoned(membership.Game(seed=4), 6, journal=path)


@pytest.mark.slow
def test_calibrated_attack_sees_overfitting(membership):
    """Many steps on few records without noise: members have smaller losses; noise hides it."""
    silent = membership.Game(
        mechanism="dp-sgd", rank=None, noise_multiplier=0.0, steps=300, records=100, seed=1, clip=100.0
    )
    noisy = membership.Game(mechanism="dp-sgd", rank=None, noise_multiplier=50.0, steps=300, records=100, seed=1)
    (loud, rates, seen), (quiet, _, unseen) = (
        membership.calibrated_loss_attack(silent),
        membership.calibrated_loss_attack(noisy),
    )
    assert seen and not unseen
    assert loud > 0.6 > quiet and [rate["at"] for rate in rates] == [0.1, 0.01]
    assert all(rate["low"] <= rate["value"] <= rate["high"] for rate in rates)
