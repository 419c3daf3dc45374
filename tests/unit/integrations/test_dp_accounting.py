"""Accountants and events of dp-accounting."""

import dp_accounting
import pytest

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Laplace, UnsupportedError
from privproj.integrations.dp_accounting import (
    BallsInBinsDpEvent,
    ProjectionPLDAccountant,
    ProjectionRdpAccountant,
    ReleaseDpEvent,
    event_of,
)
from privproj.io import Account
from privproj.io.run_file import from_data
from privproj.schedule import Composition, phase_of

RELEASE = M2(dim=2048, rank=16, noise_multiplier=0.2)


def sampled(event, rate, count):
    return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(rate, event), count)


def test_pld_accountant_equals_schedule_up_to_grid():
    events = [
        sampled(ReleaseDpEvent(RELEASE), 0.01, 300),
        sampled(dp_accounting.GaussianDpEvent(2.0), 0.01, 200),
        dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(20.0), 3),
    ]
    accountant = ProjectionPLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.ComposedDpEvent(events))
    ours = from_data(
        {
            "phase": [
                {
                    "mechanism": "m2",
                    "dim": 2048,
                    "rank": 16,
                    "noise_multiplier": 0.2,
                    "sampling_rate": 0.01,
                    "steps": 300,
                },
                {"mechanism": "gaussian", "noise_multiplier": 2, "sampling_rate": 0.01, "steps": 200},
                {"mechanism": "laplace", "noise_multiplier": 20, "steps": 3},
            ]
        }
    ).epsilon(delta=1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(ours.value, rel=2e-3, abs=0)


@pytest.mark.parametrize(
    ("mechanism", "run", "count"),
    [
        (Gaussian(noise_multiplier=1.0), {"batches": 100}, 1),
        (Gaussian(noise_multiplier=1.0), {"batches": 100}, 20),
        (Gaussian(noise_multiplier=2.0), {"batches": 10, "batches_per_record": 3}, 4),
        (RELEASE, {"batches": 100}, 20),
    ],
    ids=str,
)
def test_pld_accountant_balls_in_bins_equals_schedule(mechanism, run, count):
    epoch = BallsInBinsDpEvent(ReleaseDpEvent(mechanism), **run)
    accountant = ProjectionPLDAccountant(value_discretization_interval=1e-3)
    found = accountant.compose(dp_accounting.SelfComposedDpEvent(epoch, count)).get_epsilon(1e-5)
    ours = privproj.epsilon(mechanism, delta=1e-5, steps=count, sampling="balls-in-bins", **run)
    assert found >= (ours.lower or 0.0)
    assert found == pytest.approx(ours.value, rel=5e-3, abs=0)


def test_balls_in_bins_event_needs_projection_accountant():
    epoch = BallsInBinsDpEvent(ReleaseDpEvent(Gaussian(noise_multiplier=2.0)), batches=10)
    fine = {"value_discretization_interval": 1e-2}
    alone = ProjectionPLDAccountant(**fine).compose(epoch).get_epsilon(1e-5)
    more = ProjectionPLDAccountant(**fine).compose(epoch).compose(dp_accounting.GaussianDpEvent(50.0))
    assert alone < more.get_epsilon(1e-5) < alone + 0.2
    sampled_epoch = dp_accounting.PoissonSampledDpEvent(0.5, epoch)
    replaces = ProjectionPLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    theirs = BallsInBinsDpEvent(dp_accounting.GaussianDpEvent(2.0), batches=10)
    rejected = [
        *((kind(), epoch) for kind in (dp_accounting.pld.PLDAccountant, dp_accounting.rdp.RdpAccountant)),
        *((ProjectionPLDAccountant(), event) for event in (sampled_epoch, theirs)),
        (ProjectionRdpAccountant(), epoch),
        (replaces, epoch),
    ]
    for accountant, event in rejected:
        with pytest.raises(dp_accounting.UnsupportedEventError):
            accountant.compose(event)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="batches_per_record=4"):
        ProjectionPLDAccountant().compose(BallsInBinsDpEvent(ReleaseDpEvent(RELEASE), batches=3, batches_per_record=4))


def test_rdp_accountant_equals_renyi_bound():
    accountant = ProjectionRdpAccountant()
    accountant.compose(sampled(ReleaseDpEvent(RELEASE), 0.01, 500))
    ours = privproj.epsilon(RELEASE, delta=1e-5, steps=500, sampling_rate=0.01, bound="mixture-rdp").value
    assert accountant.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-6, abs=0)
    with pytest.raises(dp_accounting.UnsupportedEventError):
        accountant.compose(ReleaseDpEvent(Laplace(noise_multiplier=3.0)))


def test_dp_accounting_calibration_equals_sigma():
    found = dp_accounting.calibrate_dp_mechanism(
        lambda: ProjectionPLDAccountant(value_discretization_interval=1e-3),
        lambda z: sampled(ReleaseDpEvent(M2(dim=2048, rank=16, noise_multiplier=z)), 0.01, 300),
        1.0, 1e-5, bracket_interval=dp_accounting.ExplicitBracketInterval(0.05, 1.0), tol=1e-5,
    )  # fmt: skip
    ours = privproj.sigma(M2(dim=2048, rank=16), epsilon=1.0, delta=1e-5, steps=300, sampling_rate=0.01).value
    assert found == pytest.approx(ours, rel=3e-3, abs=0)


def test_release_event_rejects_unsupported_sampling():
    replace = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = ProjectionPLDAccountant(replace)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="sampling=poisson is not supported"):
        accountant.compose(sampled(ReleaseDpEvent(RELEASE), 0.01, 3))
    accountant.compose(ReleaseDpEvent(Gaussian(noise_multiplier=1.0), relation="replace"))
    known = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, relation="replace").value
    assert accountant.get_epsilon(1e-5) == pytest.approx(known, rel=1e-3, abs=0)


RELATIONS = dp_accounting.NeighboringRelation


@pytest.mark.filterwarnings("ignore:relation replace")
@pytest.mark.parametrize("relation", RELATIONS)
def test_release_event_noise_is_over_sensitivity(relation):
    z, factor = 2.0, 2.0 if relation is RELATIONS.REPLACE_ONE else 1.0
    stock = dp_accounting.pld.PLDAccountant(relation, 1e-3).compose(dp_accounting.GaussianDpEvent(factor * z), 3)
    ours = ProjectionPLDAccountant(relation, 1e-3).compose(ReleaseDpEvent(Gaussian(noise_multiplier=z)), 3)
    assert ours.get_epsilon(1e-5) == pytest.approx(stock.get_epsilon(1e-5), rel=1e-5, abs=0)
    named = {RELATIONS.REPLACE_ONE: "replace", RELATIONS.ADD_OR_REMOVE_ONE: "add-remove"}.get(relation, "zero-out")
    exact = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-5, steps=3, relation=named).value
    assert exact <= ours.get_epsilon(1e-5) * (1 + 1e-9) and exact == pytest.approx(
        ours.get_epsilon(1e-5), rel=1e-4, abs=0
    )
    renyi = ProjectionRdpAccountant(neighboring_relation=relation).compose(
        ReleaseDpEvent(Gaussian(noise_multiplier=z)), 3
    )
    assert renyi.get_epsilon(1e-5) >= exact


def test_release_event_keeps_relation():
    for relation in RELATIONS:
        names = ["replace", "add-remove", "zero-out"]
        accepted = []
        for name in names:
            event = ReleaseDpEvent(Gaussian(noise_multiplier=2.0), relation=name)
            for accountant in (
                ProjectionPLDAccountant(relation),
                ProjectionRdpAccountant(neighboring_relation=relation),
            ):
                nested = dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([event]), 2)
                if accountant.supports(nested):
                    accepted.append(name)
                else:
                    with pytest.raises(dp_accounting.UnsupportedEventError, match="as in the accountant"):
                        accountant.compose(nested)
        assert len(accepted) == 2 and len(set(accepted)) == 1
    with pytest.raises(dp_accounting.UnsupportedEventError, match="relation must be"):
        ProjectionPLDAccountant().compose(ReleaseDpEvent(Gaussian(noise_multiplier=2.0), relation="remove"))
    with pytest.warns(UserWarning, match="2C"):
        ProjectionPLDAccountant(RELATIONS.REPLACE_ONE).compose(ReleaseDpEvent(Gaussian(noise_multiplier=2.0)))


def test_mixed_noise_conventions_are_rejected_under_replace():
    ours = ReleaseDpEvent(Gaussian(noise_multiplier=2.0), relation="replace")
    theirs = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 2)
    for parts in ([ours, theirs], [theirs, ours]):
        accountant = ProjectionPLDAccountant(RELATIONS.REPLACE_ONE)
        assert not accountant.supports(dp_accounting.ComposedDpEvent(parts))
        with pytest.raises(
            dp_accounting.UnsupportedEventError,
            match="are mixed",
        ):
            accountant.compose(dp_accounting.ComposedDpEvent(parts))
        accountant.compose(parts[0])
        before = accountant.get_epsilon(1e-5)
        with pytest.raises(
            dp_accounting.UnsupportedEventError,
            match="are mixed",
        ):
            accountant.compose(parts[1])
        assert accountant.get_epsilon(1e-5) == before
    with pytest.raises(dp_accounting.UnsupportedEventError, match="sensitivity at the clip"):
        ProjectionRdpAccountant(neighboring_relation=RELATIONS.REPLACE_ONE).compose(theirs)
    free = ReleaseDpEvent(Gaussian(noise_multiplier=2.0))
    ProjectionPLDAccountant().compose(dp_accounting.ComposedDpEvent([free, theirs]))


@pytest.mark.parametrize("kind", [ProjectionPLDAccountant, ProjectionRdpAccountant])
def test_release_event_rejects_fixed_projection(kind):
    fixed = M2(dim=64, rank=4, noise_multiplier=1.0, fixed_projection=True)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="fresh"):
        kind().compose(ReleaseDpEvent(fixed))


@pytest.mark.full
@pytest.mark.parametrize("accountant", [ProjectionPLDAccountant, ProjectionRdpAccountant])
def test_release_event_counts_adaptive_clipping(accountant):
    """An event carries the mechanism: the accountants' epsilon is that of the joint release, never of the sum alone."""
    found = []
    for count in ({}, {"adaptive_clipping_sigma": 1.0}):
        mechanism = M2(dim=64, rank=4, noise_multiplier=0.8, **count)
        ours = privproj.epsilon(mechanism, delta=1e-5, steps=20, sampling_rate=0.05)
        found.append(accountant().compose(sampled(ReleaseDpEvent(mechanism), 0.05, 20)).get_epsilon(1e-5))
        assert ours.lower <= found[-1]
    assert found[1] > 1.1 * found[0]


# --- runs as events -------------------------------------------------------------------------------

FINE = {"value_discretization_interval": 1e-2}

SAMPLED = phase_of(M2(dim=64, rank=8, noise_multiplier=0.5), "sampled", steps=50, sampling_rate=0.01)

BINS = phase_of(Gaussian(noise_multiplier=2.0), "bins", steps=2, sampling="balls-in-bins", batches=10)

COUNTS = phase_of(Laplace(noise_multiplier=9.0), "counts")


@pytest.mark.parametrize("phases", [[SAMPLED], [SAMPLED, COUNTS], [COUNTS, BINS]], ids=len)
def test_event_of_schedule_costs_same(phases):
    whole = Composition(tuple(phases), 1e-2, "dp-accounting")
    found = ProjectionPLDAccountant(**FINE).compose(event_of(whole)).get_epsilon(1e-5)
    assert found == pytest.approx(whole.epsilon(delta=1e-5).value, rel=1e-5, abs=0)
    assert len(event_of(whole).events) == len(phases)


def test_event_of_ledger_phase_and_mechanism_are_equal():
    run = {"steps": 50, "sampling_rate": 0.01}
    account = Account(phases=((SAMPLED.as_dict(), 50),))
    events = [event_of(account), event_of(SAMPLED), event_of(SAMPLED.mechanism, **run)]
    assert events == [event_of(Composition((SAMPLED,)))] * 3
    with pytest.raises(InvalidParameterError, match="steps must be omitted"):
        event_of(SAMPLED, steps=3)


@pytest.mark.parametrize("count", [None, 0.7])
@pytest.mark.parametrize(("relation", "factor"), [("add-remove", 1.0), ("zero-out", 1.0), ("replace", 2.0)])
def test_event_of_plain_is_read_by_dp_accounting(relation, factor, count):
    mechanism = Gaussian(noise_multiplier=2.0, adaptive_clipping_sigma=count)
    sampled = event_of(mechanism, plain=True, steps=3, relation=relation)
    if count is None:
        assert sampled.events == [dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0 * factor), 3)]
    named = {"replace": RELATIONS.REPLACE_ONE, "zero-out": RELATIONS.REPLACE_SPECIAL}.get(
        relation, RELATIONS.ADD_OR_REMOVE_ONE
    )
    stock = dp_accounting.pld.PLDAccountant(named, 1e-3).compose(sampled).get_epsilon(1e-5)
    ours = privproj.epsilon(mechanism, delta=1e-5, steps=3, relation=relation).value
    assert ours * (1 - 1e-9) <= stock == pytest.approx(ours, rel=1e-4, abs=0)


def test_event_of_rejects_runs_without_event():
    gaussian = Gaussian(noise_multiplier=2.0)
    for run in (
        {"group_size": 2},
        {"sampling_rate": 0.1, "sampling": "fixed", "relation": "replace"},
        {"sampling_rate": 0.1, "sampling": "poisson", "max_batch_size": 20, "dataset_size": 95},
    ):
        with pytest.raises(UnsupportedError, match="phase: no dp-accounting event"):
            event_of(gaussian, **run)
    with pytest.raises(UnsupportedError, match="Laplace"):
        event_of(Laplace(noise_multiplier=2.0), plain=True, relation="replace")
    with pytest.raises(UnsupportedError, match="balls-in-bins"):
        event_of(BINS, plain=True)
    # an epoch of a partition is one release
    epochs = event_of(gaussian, steps=3, sampling="partition", relation="zero-out")
    assert epochs.events[0].count == 3 and isinstance(epochs.events[0].event, ReleaseDpEvent)


def test_pld_accountant_corrects_randomized_response():
    chosen = dp_accounting.dp_event.RandomizedResponseDpEvent(0.5, 4)
    costs = [
        ProjectionPLDAccountant(RELATIONS.REPLACE_ONE, 1e-3).compose(chosen, count).get_epsilon(1e-9)
        for count in (1, 4)
    ]
    assert costs[1] == pytest.approx(4.0 * costs[0], rel=1e-2, abs=0)
    for noise in (2, 2.0):
        four = dp_accounting.PoissonSampledDpEvent(
            0.01, dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(noise)] * 4)
        )
        one = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        found = [ProjectionRdpAccountant().compose(event, 1000).get_epsilon(1e-5) for event in (four, one)]
        assert found[0] == pytest.approx(found[1], rel=1e-9, abs=0)
