"""A phase is the same alone and in a run; what is no guarantee is marked wherever it is released."""

import pytest

import privproj
from privproj import (
    M2,
    Gaussian,
    InvalidParameterError,
    Laplace,
    Outcome,
    Side,
    Sketch,
    Status,
    UnsupportedError,
    Wishart,
)
from privproj.accounting.phase import Phase, phase_for
from privproj.accounting.query import build_result, composition_of_phase
from privproj.mechanisms.registry import find_bound
from privproj.schedule import Composition, from_data, phase_of

RUN = {"steps": 20, "sampling_rate": 0.05}
PHASES = [
    phase_of(Gaussian(noise_multiplier=1.0), "first", **RUN),
    phase_of(Gaussian(noise_multiplier=2.0), "first", steps=4),
    phase_of(M2(dim=64, rank=4, noise_multiplier=1.0), "first", group_size=2),
    phase_of(M2(dim=64, rank=4, noise_multiplier=1.0, change_rank=1), "first", bound="mixture-rdp", **RUN),
    phase_of(Laplace(noise_multiplier=2.0), "first", relation="replace", sampling="fixed", **RUN),
]


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: f"{phase.mechanism.name}.{phase.bound.name}")
def test_one_phase_equals_the_plain_query(phase):
    requested = composition_of_phase(phase), Composition((phase,))
    assert [composition.is_plain for composition in requested] == [True, False]
    curves = [composition.curve() for composition in requested]
    assert curves[0].epsilon(-11.0) == curves[1].epsilon(-11.0)
    results = [
        build_result(query, "epsilon", 1.0, side=query.side(curve))
        for query, curve in zip(requested, curves, strict=True)
    ]
    for name in ("side", "status", "data_assumptions", "source", "outcome", "bound_version"):
        assert getattr(results[0], name) == getattr(results[1], name), name
    assert set(results[0].requirements) == set(results[1].requirements)


def test_phase_name_does_not_change_the_result():
    phase = phase_of(Gaussian(noise_multiplier=1.0), "", **RUN)
    answer = from_data({"phase": [phase.as_dict()]}).epsilon(delta=1e-5)
    assert (answer.mechanism["name"], answer.bound) == ("run", "gaussian.analytic")


def test_joint_options_belong_to_the_schedule():
    phase = phase_of(Gaussian(noise_multiplier=1.0), "first", **RUN, discretization=1e-3)
    with pytest.raises(InvalidParameterError, match="the same for all phases"):
        Composition((phase, phase_of(Gaussian(noise_multiplier=1.0), "second")))


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: f"{phase.mechanism.name}.{phase.bound.name}")
def test_phase_is_read_again_from_entry_that_it_writes(phase):
    (again,) = from_data({"phase": [phase.as_dict()]}).phases
    assert again == phase


@pytest.mark.parametrize("name", ["plain", "run"])
def test_refuted_bound_is_marked_in_run_as_it_is_alone(name):
    mechanism = Sketch(
        rank=16, frobenius_bound=1.0, sensitivity=0.01, noise_sigma=1.0, step_smoothness=0.01, eigenvalues=3
    )
    phase = phase_of(mechanism, "run", bound="lora-by-design", steps=2, allow_refuted=True)
    composition = Composition((phase,)) if name == "run" else composition_of_phase(phase)
    value = composition.curve().epsilon(-11.0).upper
    found = build_result(composition, "epsilon", value)
    assert (found.status, found.side, found.outcome) == (Status.REFUTED, Side.NONE, Outcome.UNSUPPORTED)
    assert any("NOT A GUARANTEE" in text for text in found.warnings) and found.upper is None


def test_weakest_status_is_that_of_run():
    proved, assumed = PHASES[1], phase_of(Gaussian(noise_multiplier=3.0), "second", group_size=2)
    assert build_result(Composition((proved,)), "epsilon", 1.0).status is Status.PROVED
    grouped = phase_of(Gaussian(noise_multiplier=9.0), "third", group_size=2)
    assert build_result(Composition((assumed, grouped)), "epsilon", 1.0).status is Status.CONDITIONAL


def test_unprintable_phase_name_is_rejected():
    with pytest.raises(InvalidParameterError, match="printable text without line breaks"):
        phase_of(Gaussian(noise_multiplier=1.0), "two\nlines")


def test_unknown_run_option_error_lists_options():
    bound = find_bound(Gaussian, None)
    with pytest.raises(InvalidParameterError, match="steps"):
        phase_for(Gaussian(noise_multiplier=1.0), bound, {"step": 3})
    assert phase_for(Gaussian(noise_multiplier=1.0), bound, {"steps": 3}) == Phase(
        Gaussian(noise_multiplier=1.0), privproj.run.Run(steps=3, relation="add-remove"), bound
    )


@pytest.mark.parametrize(
    ("mechanism", "bound"),
    [
        (Sketch(rank=16, gamma=50.0), "rdp-best"),
        (Sketch(rank=16, gamma=50.0), "exact-rank1"),
        (Wishart(dim=1000, rank=16, misalignment=8e-6), "exact"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_remedy_for_poisson_sampling_is_accepted(mechanism, bound):
    with pytest.raises(UnsupportedError) as rejected:
        phase_of(mechanism, "first", bound=bound, **RUN).check()
    fixed = {**RUN, "sampling": "fixed", "relation": "replace"}
    advised = fixed if "sampling=fixed with relation=replace" in str(rejected.value) else {"steps": RUN["steps"]}
    assert "Omit the sampling" in str(rejected.value) or advised is fixed
    assert phase_of(mechanism, "first", bound=bound, **advised).curve().epsilon(-11.0).upper > 0.0
