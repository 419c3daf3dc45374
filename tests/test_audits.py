"""Audits: planted faults are refuted, correct code is not, and bounds from counts are what they claim to be."""

import json
import math

import numpy as np
import pytest
from privproj_cli.main import exit_code
from scipy import stats

import privproj
from privproj.audit.epsilon_lower import (
    Counts,
    auc,
    balanced_accuracy,
    ceiling,
    counts_on_second_half,
    judge,
    one_run_epsilon,
    one_run_p_value,
)
from privproj.errors import InvalidParameter

M2 = privproj.M2(dim=64, rank=8, noise_multiplier=1.0)


# --- bounds from counts -------------------------------------------------------------------------------


def test_the_ceiling_of_perfect_separation():
    """The numbers of the specification: n runs in each arm, 95 %."""
    for n, known in ((50, 2.57), (200, 3.98), (1000, 5.60), (5000, 7.21)):
        assert ceiling(n, n, 0.0, 0.95) == pytest.approx(known, abs=0.006, rel=0)


def test_the_bound_is_that_of_clopper_and_pearson():
    counts = Counts(60, 100, 3, 120)
    low, high = stats.beta.ppf(0.025, 60, 41), stats.beta.ppf(0.975, 4, 117)
    other = math.log((1 - high - 1e-3) / (1 - low))
    assert counts.epsilon(1e-3, 0.95) == pytest.approx(max(math.log((low - 1e-3) / high), other), rel=1e-12, abs=0)
    assert Counts(0, 100, 120, 120).epsilon(0.0, 0.95) == 0.0 == Counts(50, 100, 60, 120).epsilon(1e-3, 0.95)


def test_the_bound_is_wrong_as_rarely_as_it_says():
    """Randomized response with epsilon 1: a confidence of 90 % is exceeded in at most 10 % of 2000 experiments."""
    rng, rate = np.random.default_rng(0), math.e / (1 + math.e)
    found = [
        Counts(rng.binomial(300, rate), 300, rng.binomial(300, 1 - rate), 300).epsilon(0.0, 0.9) for _ in range(2000)
    ]
    assert np.mean(np.array(found) > 1.0) <= 0.1
    assert np.median(found) > 0.6


def test_thresholds_come_from_the_other_half():
    scores = np.concatenate([np.zeros(50), np.ones(50)])
    worth = lambda tried: [counts.epsilon(1e-3, 0.95) for counts in tried]  # noqa: E731
    counts = counts_on_second_half(scores, scores, worth)
    assert counts.members == counts.others == 50
    rng, refuted = np.random.default_rng(1), 0
    for _ in range(300):
        a, b = rng.standard_normal((2, 200))
        refuted += judge(a, b, delta=1e-6, confidence=0.95, claim=0.0).refuted
    assert refuted <= 15
    with pytest.raises(InvalidParameter, match="four runs"):
        counts_on_second_half(scores[:3], scores, worth)


def test_auc_and_balanced_accuracy():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(4000) + 1.0, rng.standard_normal(4000)
    assert auc(a, b) == pytest.approx(stats.mannwhitneyu(a, b).statistic / 16e6, rel=1e-12, abs=0)
    assert auc(np.ones(3), np.ones(5)) == 0.5
    assert balanced_accuracy(a, b) == pytest.approx(stats.norm.cdf(0.5), abs=0.02, rel=0)
    assert balanced_accuracy(b, a) < 0.52


def test_the_worked_example_of_one_run():
    assert one_run_p_value(100, 100, 75, math.log(3), 0.0) == pytest.approx(0.553, abs=5e-4, rel=0)
    tail = stats.binom.sf(59, 100, 0.6)
    assert one_run_p_value(100, 100, 60, math.log(1.5), 0.0) == pytest.approx(tail, rel=1e-9, abs=0)
    assert one_run_p_value(100, 100, 75, 1.0, 1e-3) > one_run_p_value(100, 100, 75, 1.0, 0.0)
    found = one_run_epsilon(1000, 200, 190, 1e-5, 0.95)
    assert (
        one_run_p_value(1000, 200, 190, found * 0.999, 1e-5)
        < 0.05
        < one_run_p_value(1000, 200, 190, found * 1.001, 1e-5)
    )
    assert one_run_epsilon(100, 100, 50, 0.0, 0.95) == 0.0


# --- the release code ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release():
    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    torch.set_num_threads(1)
    from privproj.audit import mechanism

    return mechanism


def sampled_scores(mechanism, steps, runs, rng):
    """The log-likelihood ratios drawn from their law: ``N(+-b mu^2/2, b mu^2)`` summed over steps, ``b`` Beta."""
    shape = mechanism.beta_shape if isinstance(mechanism, privproj.M2) else None
    energy = np.ones((2, runs, steps)) if shape is None else rng.beta(*shape, size=(2, runs, steps))
    total = mechanism.mu**2 * energy.sum(2)
    noise = np.sqrt(total) * rng.standard_normal((2, runs))
    return 0.5 * total[0] + noise[0], -0.5 * total[1] + noise[1]


def audited(release, fault, runs=1000, **more):
    scene = release.Scene(mechanism=M2, steps=6, fault=fault, seed=1)
    return release.judge_scene(scene, scene.scores(runs, runs), 1e-3, 0.999, more.get("claim"))


@pytest.mark.parametrize(
    "fault",
    ["half-noise", "isotropic", "reused-projection", "wrong-dimension", "replace-as-add-remove", "clip-after-mean"],
)
def test_planted_faults_are_refuted(release, fault):
    found = audited(release, fault)
    assert found.refuted and found.verdict == "refuted"
    assert found.epsilon_lower < found.ceiling


def test_correct_code_is_not_refuted_and_a_tenth_of_its_epsilon_is(release):
    found = audited(release, None)
    assert not found.refuted and 0.0 < found.epsilon_lower < found.claimed_epsilon
    assert audited(release, None, claim=0.1 * found.claimed_epsilon).refuted


@pytest.mark.parametrize("mechanism", [M2, privproj.Gaussian(noise_multiplier=3.0)])
def test_scores_of_the_release_code_have_the_law_of_the_mechanism(release, mechanism):
    scene = release.Scene(mechanism=mechanism, steps=5, seed=2)
    real = scene.scores(600, 600)
    law = sampled_scores(mechanism, 5, 20_000, np.random.default_rng(0))
    for ours, known in zip(real, law, strict=True):
        assert stats.ks_2samp(ours, known).pvalue > 1e-3


def test_correct_code_is_not_refuted_in_fifty_seeds(release):
    scene = release.Scene(mechanism=M2, steps=20)
    refuted = [
        release.judge_scene(scene, sampled_scores(M2, 20, 4000, np.random.default_rng(seed)), 1e-3, 0.999, None).refuted
        for seed in range(50)
    ]
    assert not any(refuted)


def test_one_run_finds_half_the_noise(release):
    from privproj.audit.one_run import one_run

    loud = one_run(privproj.Gaussian(noise_multiplier=0.5), 1000, 200, 1e-5, 0.95, seed=0)
    quiet = one_run(privproj.Gaussian(noise_multiplier=4.0), 1000, 200, 1e-5, 0.95, seed=0)
    assert quiet[0] < 0.6 < 2.0 < loud[0] and loud[1] > 190
    known = stats.norm.cdf(1.0 / (0.5 * math.sqrt(2.0)))
    assert loud[2] == pytest.approx(known, abs=0.03, rel=0)
    claim = privproj.epsilon(privproj.Gaussian(noise_multiplier=4.0), delta=1e-5).value
    assert quiet[0] < claim < loud[0]


@pytest.mark.parametrize(("fault", "words"), [("no-noise", "one of half-noise"), ("isotropic", "nothing is projected")])
def test_faults_that_are_none(release, fault, words):
    with pytest.raises(InvalidParameter, match=words):
        release.Scene(mechanism=privproj.Gaussian(noise_multiplier=1.0), steps=2, fault=fault)


# --- trained models -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def membership(release):
    pytest.importorskip("sklearn")
    from privproj.audit import membership

    return membership


def test_a_canary_without_noise_is_seen_and_with_much_noise_is_not(membership):
    games = [membership.Game(noise_multiplier=z, rank=32, steps=10, records=50, seed=1) for z in (0.0, 200.0)]
    loud, quiet = (membership.poisoned(game, 12, workers=2) for game in games)
    assert auc(*loud) > 0.95 and abs(auc(*quiet) - 0.5) < 0.35
    assert games[0].claim(1e-3) is None and games[1].claim(1e-3) > 0.0


def test_a_journal_makes_an_audit_resumable(membership, tmp_path):
    game, path = membership.Game(mechanism="dp-sgd", rank=None, steps=3, records=20, seed=3), tmp_path / "journal"
    whole = membership.poisoned(game, 6, workers=1, journal=path)
    lines = path.read_text().splitlines()
    assert len(lines) == 13
    path.write_text("\n".join(lines[:8]) + "\n5,0.2")
    again = membership.poisoned(game, 6, workers=1, journal=path)
    assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))
    with pytest.raises(InvalidParameter, match="this very question"):
        membership.poisoned(membership.Game(seed=4), 6, journal=path)


def test_the_calibrated_attack_sees_overfitting(membership):
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
    assert loud > 0.6 > quiet and [rate.at for rate in rates] == [0.1, 0.01]
    assert all(rate.low <= rate.value <= rate.high for rate in rates)


# --- the commands ---------------------------------------------------------------------------------------


def asked(capsys, line):
    code = exit_code(["audit", *line.split(), "--json"])
    return code, json.loads(capsys.readouterr().out)


KEYS = {"auc", "epsilon_lower", "confidence", "claimed_epsilon", "ceiling", "verdict", "trials", "seconds"}


def test_symmetry(capsys):
    code, found = asked(capsys, "symmetry --dim 64 --columns 8 --rank 16")
    assert (code, found["auc"], found["verdict"]) == (0, 1.0, "separates") and set(found) >= KEYS
    assert found["seconds"] < 5.0
    assert asked(capsys, "symmetry --dim 64 --columns 8 --rank 16 --claim 5")[0] == 1
    code, found = asked(capsys, "symmetry --columns 1 --claim 5")
    assert (code, found["verdict"]) == (0, "does not separate")


def test_mechanism(release, capsys):
    line = "mechanism m2 --dim 64 --rank 8 --noise-multiplier 1 --steps 4 --delta 1e-3 --trials 800 --seed 1"
    code, found = asked(capsys, line)
    assert (code, found["verdict"], found["confidence"], found["trials"]) == (0, "not refuted", 0.999, 800)
    assert set(found) >= KEYS
    code, found = asked(capsys, line + " --fault clip-after-mean")
    assert (code, found["verdict"]) == (1, "refuted")
    assert exit_code(["audit", *line.split(), "--claim", "0.01"]) in (0, 1)
    shown = capsys.readouterr().out
    assert "an audit never confirms" in shown and "is private" not in shown


def test_one_run_and_membership(release, capsys):
    code, found = asked(capsys, "one-run --noise-multiplier 2 --canaries 200 --guesses 50 --seed 1")
    assert code == 0 and set(found) >= KEYS
    line = "membership --mechanism dp-sgd --noise-multiplier 4 --models 8 --steps 2 --records 20 --seed 1"
    code, found = asked(capsys, line)
    assert code == 0 and set(found) >= KEYS and found["trials"] == 8
    code, found = asked(capsys, line + " --attack calibrated")
    assert code == 0 and len(found["rates"]) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mechanism m2 --noise-multiplier 1", "--dim"),
        ("mechanism m2 --dim 64 --rank 8 --noise-multiplier 0", "noise multiplier"),
        ("mechanism m2 --dim 64 --rank 8 --noise-multiplier 1 --delta 2", "delta"),
        ("mechanism gaussian --noise-multiplier 1 --fault isotropic", "projected"),
        ("mechanism m2 --dim 64 --rank 8 --noise-multiplier 1 --trials 3", "trials"),
        ("one-run --noise-multiplier 1 --guesses 2000", "guesses"),
        ("membership --noise-multiplier -1 --rank 4", "noise multiplier"),
        ("membership --noise-multiplier 1 --mechanism m2 --rank 0", "rank"),
        ("membership --noise-multiplier 1 --records 1e5 --rank 4", "records"),
        ("symmetry --rank 0", "rank"),
        ("one-run --noise-multiplier 5 --claim -1", "epsilon"),
        ("one-run --noise-multiplier 5 --seed -1", "seed"),
        ("membership --noise-multiplier 4 --rank 4 --models 8 --journal /nowhere/j.jsonl", "journal"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(release, capsys, line, words):
    assert exit_code(["audit", *line.split()]) == 2
    shown = capsys.readouterr()
    error = [row for row in shown.err.splitlines() if row.startswith("error")]
    assert shown.out == "" and len(error) == 1 and words in error[0]
