"""An accountant is the run file of its steps, and the command line's answer to that, to the bit."""

import json

import pytest
from privproj_cli.main import exit_code

import privproj
from privproj import M2, Accountant, Gaussian, InvalidParameterError, UnsupportedError
from privproj.accounting.lower_bounds import with_details
from privproj.schedule import Composition, phase_of

GAUSSIAN = Gaussian(noise_multiplier=1.0)
PROJECTED = M2(dim=64, rank=4, noise_multiplier=0.5)
LOOPS = {
    "one kind": [(GAUSSIAN, {"sampling_rate": 0.01})] * 20,
    "alternating": [(GAUSSIAN, {"sampling_rate": 0.01}), (PROJECTED, {"sampling_rate": 0.02, "steps": 3})] * 7,
    "whole data sets": [(GAUSSIAN, {}), (PROJECTED, {"relation": "zero-out"})][:1] * 3,
    "a bound of its own": [(PROJECTED, {"bound": "gaussian"}), (PROJECTED, {})],
    "a bound without a profile": [(GAUSSIAN, {"bound": "rdp", "sampling_rate": 0.1})] * 5,
    "batches of a known size": [(GAUSSIAN, {"batch_size": 10, "dataset_size": 1000, "sampling": "poisson"})] * 4,
    "epochs": [(GAUSSIAN, {"sampling": "balls-in-bins", "batches": 20})] * 2,
    "another relation": [(PROJECTED, {"relation": "replace"})] * 2,
    "persons": [(GAUSSIAN, {"sampling_rate": 0.01, "group_size": 2})] * 2,
}
"""Loops of steps."""


def stated(loop):
    """The accountant of a loop."""
    found = Accountant()
    for mechanism, run in loop:
        assert found.step(mechanism, **run) is found
    return found


@pytest.mark.full
@pytest.mark.parametrize("ending", ["toml", pytest.param("json", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", LOOPS)
def test_accountant_equals_run_file_and_command(name, ending, tmp_path, capsys):
    accountant, file = stated(LOOPS[name]), tmp_path / f"run.{ending}"
    accountant.save(file)
    found = accountant.epsilon(1e-5)
    again = Accountant.read(file)
    assert again.schedule == accountant.schedule and again.epsilon(1e-5) == found
    assert exit_code(["run", str(file), "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(with_details(found).as_dict()))
    assert exit_code(["run", str(file), "--epsilon", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == accountant.delta(1.0).value


@pytest.mark.parametrize("name", LOOPS)
def test_accountant_has_one_phase_per_kind_of_step(name):
    accountant = stated(LOOPS[name])
    assert len(accountant.schedule.phases) == len({id(mechanism) for mechanism, _ in LOOPS[name]}) + (
        name == "a bound of its own"
    )
    counted = sum(phase.run.steps for phase in accountant.schedule.phases)
    assert counted == sum(run.get("steps", 1) for _, run in LOOPS[name])


def test_accountant_of_one_kind_equals_single_query():
    plain = privproj.epsilon(GAUSSIAN, delta=1e-5, sampling_rate=0.01, steps=20)
    assert stated(LOOPS["one kind"]).epsilon(1e-5).value == plain.value


def test_accountant_sum_and_product_equal_loops():
    first, second = stated(LOOPS["one kind"]), stated(LOOPS["alternating"])
    before = first.schedule, second.schedule
    assert (first + second).schedule == stated([*LOOPS["one kind"], *LOOPS["alternating"]]).schedule
    assert (second * 3).schedule == (second + second + second).schedule == stated(LOOPS["alternating"] * 3).schedule
    assert (first + phase_of(PROJECTED)).schedule == (first + Composition((phase_of(PROJECTED),))).schedule
    assert (Accountant() + first).schedule == first.schedule == before[0] and second.schedule == before[1]
    assert Accountant(first.schedule).step(GAUSSIAN).schedule != first.schedule


@pytest.mark.parametrize("mechanism", [GAUSSIAN, PROJECTED, None])
def test_accountant_remaining_is_largest_that_fits(mechanism):
    accountant, run, target = stated(LOOPS["one kind"]), {"sampling_rate": 0.01}, {"epsilon": 1.0, "delta": 1e-5}
    requested = {} if mechanism is None else run
    most = accountant.remaining(mechanism, **requested, **target).more_steps
    at_most = Accountant(accountant.schedule).step(mechanism or GAUSSIAN, steps=most, **run)
    assert accountant.epsilon(1e-5).value < at_most.epsilon(1e-5).value <= 1.0
    assert at_most.step(mechanism or GAUSSIAN, **run).epsilon(1e-5).value > 1.0
    fresh = Accountant().remaining(mechanism or GAUSSIAN, **run, **target).more_steps
    assert fresh == privproj.steps(mechanism or GAUSSIAN, **run, **target).value > most


def test_phase_name_may_be_any_printable_text(tmp_path):
    file = tmp_path / "run.toml"
    accountant = Accountant().step(GAUSSIAN, name='\U0001f600 "\\ é')
    accountant.save(file)
    assert Accountant.read(file).schedule == accountant.schedule
    for name in ("a\nb", "\ud800", "a\x7fb", 5):
        with pytest.raises(InvalidParameterError, match="printable text without line breaks"):
            Accountant().step(GAUSSIAN, name=name)


@pytest.mark.parametrize("other", ["x", 1, None])
def test_accountant_rejects_sum_with_other_types(other):
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = Accountant() + other


def test_empty_accountant_has_no_epsilon():
    for ask in (lambda: Accountant().epsilon(1e-5), lambda: Accountant().save("x.toml"), lambda: Accountant() * 2,
                lambda: Accountant().remaining(epsilon=1.0, delta=1e-5)):  # fmt: skip
        with pytest.raises(InvalidParameterError, match="no step was recorded"):
            ask()
    assert repr(Accountant()) == "<Accountant: nothing released>"


def test_accountant_does_not_count_rejected_step():
    accountant = stated(LOOPS["one kind"])
    before = accountant.schedule
    for mechanism, run in (
        (GAUSSIAN, {"relation": "replace"}),
        (GAUSSIAN, {"group_size": 2}),
        (M2(dim=64, rank=4, noise_multiplier=9.0, fixed_projection=True), {"steps": 3}),
        (GAUSSIAN, {"sampling_rate": 2.0}),
    ):
        with pytest.raises((InvalidParameterError, UnsupportedError)):
            accountant.step(mechanism, **run)
        assert accountant.schedule == before
