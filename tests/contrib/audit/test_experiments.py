"""Audits of release code and loader: planted faults are refuted, correct code is not."""

import math

import numpy as np
import pytest
from helpers import slow_if
from scipy import stats
from scipy.special import logsumexp

import privproj
from privproj.contrib.audit.faults import LOADER_FAULTS
from privproj.errors import InvalidParameterError

M2 = privproj.M2(dim=64, rank=8, noise_multiplier=1.0)


def sampled_scores(mechanism, steps, runs, rng):
    """The log-likelihood ratios drawn from their law: ``N(+-b mu^2/2, b mu^2)`` summed over steps, ``b`` Beta."""
    shape = mechanism.beta_shape if isinstance(mechanism, privproj.M2) else None
    energy = np.ones((2, runs, steps)) if shape is None else rng.beta(*shape, size=(2, runs, steps))
    total = mechanism.mu**2 * energy.sum(2)
    noise = np.sqrt(total) * rng.standard_normal((2, runs))
    return 0.5 * total[0] + noise[0], -0.5 * total[1] + noise[1]


def audited(release, fault, runs=1000, **more):
    experiment = release.AuditExperiment(mechanism=M2, steps=6, fault=fault, seed=1)
    return release.assess_experiment(experiment, experiment.scores(runs, runs), 1e-3, 0.999, more.get("claim"))


@pytest.mark.full
@pytest.mark.parametrize(
    "fault",
    slow_if(
        ["half-noise", "isotropic", "reused-projection", "wrong-dimension", "replace-as-add-remove", "clip-after-mean"],
        lambda fault: fault not in ("half-noise", "replace-as-add-remove"),
    ),
)
def test_planted_faults_are_refuted(release, fault):
    found = audited(release, fault)
    assert found.refuted and found.verdict == "refuted"
    assert found.epsilon_lower < found.ceiling


@pytest.mark.slow
def test_correct_code_is_not_refuted_and_tenth_of_its_epsilon_is(release):
    found = audited(release, None)
    assert not found.refuted and 0.0 < found.epsilon_lower < found.claimed_epsilon
    assert audited(release, None, claim=0.1 * found.claimed_epsilon).refuted


@pytest.mark.full
@pytest.mark.parametrize("mechanism", [M2, privproj.Gaussian(noise_multiplier=3.0)])
def test_release_scores_have_distribution_of_mechanism(release, mechanism):
    experiment = release.AuditExperiment(mechanism=mechanism, steps=5, seed=2)
    real = experiment.scores(600, 600)
    distribution = sampled_scores(mechanism, 5, 20_000, np.random.default_rng(0))
    for ours, known in zip(real, distribution, strict=True):
        assert stats.ks_2samp(ours, known).pvalue > 1e-3


@pytest.mark.slow
def test_correct_code_is_not_refuted_in_twenty_seeds(release):
    experiment = release.AuditExperiment(mechanism=M2, steps=20)
    refuted = [
        release.assess_experiment(
            experiment, sampled_scores(M2, 20, 2000, np.random.default_rng(seed)), 1e-3, 0.999, None
        ).refuted
        for seed in range(20)
    ]
    assert not any(refuted)


@pytest.mark.parametrize(
    ("fault", "text"), [("no-noise", "did you mean 'half-noise'"), ("isotropic", "does not project")]
)
def test_unknown_faults_are_rejected(release, fault, text):
    with pytest.raises(InvalidParameterError, match=text):
        release.AuditExperiment(mechanism=privproj.Gaussian(noise_multiplier=1.0), steps=2, fault=fault)


def test_incomplete_experiment_error_names_argument(release):
    with pytest.raises(InvalidParameterError, match="missing steps"):
        release.AuditExperiment(mechanism=Z)
    with pytest.raises(InvalidParameterError, match="missing epochs"):
        release.LoaderExperiment(mechanism=Z, batches=2)
    experiment = release.AuditExperiment(mechanism=Z, steps=1)
    for shapes in (((2, 5), (3, 5)), ((0, 5), (0, 5))):
        with pytest.raises(InvalidParameterError, match="same number of rows"):
            release.assess_experiment(experiment, tuple(map(np.ones, shapes)), 1e-3, 0.99, 0.1)


def test_one_run_finds_half_noise(release):
    loud = release.one_run(privproj.Gaussian(noise_multiplier=0.5), 1000, 200, 1e-5, 0.95, seed=0)
    quiet = release.one_run(privproj.Gaussian(noise_multiplier=4.0), 1000, 200, 1e-5, 0.95, seed=0)
    assert quiet[0].epsilon_lower < 0.6 < 2.0 < loud[0].epsilon_lower and loud[1] > 190
    known = stats.norm.cdf(1.0 / (0.5 * math.sqrt(2.0)))
    assert loud[0].auc == pytest.approx(known, abs=0.03, rel=0)
    assert quiet[0].epsilon_lower < quiet[0].claimed_epsilon < loud[0].epsilon_lower
    assert quiet[0].epsilon_lower < quiet[0].ceiling and not quiet[0].refuted


# --- the loader ---------------------------------------------------------------------------------------

Z = privproj.Gaussian(noise_multiplier=1.2)


def audited_loader(release, fault, runs, seed=1, confidence=0.999, **more):
    experiment = release.LoaderExperiment(mechanism=Z, batches=16, epochs=16, fault=fault, seed=seed)
    return release.assess_experiment(experiment, experiment.scores(runs, runs), 1e-3, confidence, more.get("claim"))


def test_recorded_epochs_hold_canary_once_without_fault(release):
    experiments = {
        fault: release.LoaderExperiment(mechanism=Z, batches=5, epochs=8, fault=fault, seed=0).record(10).reshape(-1, 5)
        for fault in (None, *LOADER_FAULTS)
    }
    once = np.ones(80)
    assert all(((found.sum(1) == once).all()) == (fault != "two-bins") for fault, found in experiments.items())
    assert (experiments["two-bins"].sum(1) == 2.0).all()
    first = experiments["same-assignment"][0]
    assert (experiments["same-assignment"] == first).all() and not (experiments[None] == experiments[None][0]).all()
    # P(first batch) = 1/2 + 1/2 1/5 in place of 1/5: 48 of 80 in place of 16.
    assert experiments["uneven"][:, 0].sum() > 35.0 > experiments[None][:, 0].sum()


def test_score_is_log_likelihood_ratio_of_run(release):
    """Of 2 epochs of 3 batches: all 9 ways in which the canary may lie, each as likely."""
    experiment = release.LoaderExperiment(mechanism=Z, batches=3, epochs=2, seed=0)
    present = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    (found,) = experiment.score_run(present, (np.full(3, 1.0 / 3.0),), np.random.default_rng(7))
    y = present + 1.2 * np.random.default_rng(7).standard_normal(present.shape)
    ways = [(i, j) for i in range(3) for j in range(3)]
    logs = [((y[0, i] - 0.5) + (y[1, j] - 0.5)) / 1.44 for i, j in ways]
    assert found == pytest.approx(logsumexp(logs) - np.log(9.0), rel=1e-12)


@pytest.mark.slow
def test_reused_assignment_is_refuted_and_fresh_is_not(release):
    """With 100 runs of each kind: 19 of 20 faulty loaders were refuted in a simulation, and none of 20 right ones."""
    assert audited_loader(release, "same-assignment", 100).refuted
    assert not audited_loader(release, None, 100).refuted


@pytest.mark.slow
@pytest.mark.parametrize("fault", LOADER_FAULTS)
@pytest.mark.parametrize("seed", range(3))
def test_planted_faults_of_loader_are_refuted(release, fault, seed):
    """With 600 runs of each kind 8 of 8 loaders with each fault were refuted in a simulation, but 8 of 9 real ones."""
    found = audited_loader(release, fault, 1000, seed)
    assert found.refuted and found.epsilon_lower < found.ceiling


@pytest.mark.slow
def test_loader_audit_refutes_only_a_tenth_of_epsilon(release):
    for seed in range(4):
        found = audited_loader(release, None, 600, seed, confidence=0.99)
        assert not found.refuted and 0.0 < found.epsilon_lower < found.claimed_epsilon
    assert audited_loader(release, None, 600, claim=0.1 * found.claimed_epsilon).refuted


def test_invalid_loader_experiments_are_rejected(release):
    for wrong in ({"fault": "half-noise"}, {"batches": 0}, {"epochs": 1.5}):
        with pytest.raises(InvalidParameterError):
            release.LoaderExperiment(**{"mechanism": Z, "batches": 4, "epochs": 4, **wrong})
