"""Files: no key is dropped, coerced or overruled, and what the command line refuses, files refuse."""

import json
import random
from importlib import import_module
from importlib.resources import files

import click
import jsonschema
import pytest
from fuzz import keys
from fuzz.laws import call
from fuzz.strategies import Case
from privproj_cli.files import as_toml
from privproj_cli.main import COMMANDS, exit_code
from privproj_cli.options import Once

import privproj
from privproj import M1, M2, Gaussian, InvalidParameter, Layer, PublicSketch, Sketch, Wishart
from privproj.assumptions import PLAN_FIXED_IN_ADVANCE
from privproj.bounds import LINES, mechanism_named
from privproj.records.entries import keys_of
from privproj.records.regression import entries_from
from privproj.records.run_file import FOR_ALL, PHASE_KEYS, from_data
from privproj.records.sweep import grid_from
from privproj.runs import run_options_from_batches

GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}
SCHEMA = json.loads((files("privproj") / "run_schema.json").read_text())


# --- the law --------------------------------------------------------------------------------------


def test_a_key_that_is_removed_doubled_or_mistyped_changes_the_answer_or_is_an_error():
    count = keys.tried(seed=19, cases=150, most=4)
    shown = [f"{way} {key}: {words}\n{file.text}" for way, key, file, words in count.silent]
    assert not shown, "\n\n".join(shown)
    for outcome in ("removed: changed", "removed: error", "doubled: error", "mistyped: error", "unknown: error"):
        assert count.cases[outcome] >= 5, count.cases


def test_the_law_sees_a_dropped_and_a_coerced_key(monkeypatch):
    entry = [*GAUSSIAN.items(), ("batch_size", 2), ("dataset_size", 9), ("epochs", 3)]
    file = keys.File("run", "json", [], [entry])
    before = file.answer[1]
    without = file.changed(0, entry[:-1])
    assert keys.judged(file, before, "removed", "epochs", without) == "changed"
    spelled = file.changed(0, [*entry, ("noise-multiplier", 2)])
    assert keys.judged(file, before, "doubled", "noise_multiplier", spelled) == "error"
    planned = file.changed(0, [*entry, ("planned", "false")])
    assert keys.judged(file, before, "mistyped", "planned", planned) == "error"
    monkeypatch.setattr("privproj.runs.math.ceil", lambda x: 5)
    monkeypatch.setattr(
        "privproj.records.run_file.once", lambda entry, where: {k.replace("-", "_"): entry[k] for k in entry}
    )
    monkeypatch.setattr("privproj.records.entries.of_type", lambda name, value, words: value)
    assert keys.judged(file, file.answer[1], "removed", "epochs", without).startswith("the same answer")
    assert keys.judged(file, before, "doubled", "noise_multiplier", spelled).startswith("answered")
    assert keys.judged(file, before, "mistyped", "planned", planned).startswith("answered")


@pytest.mark.slow
def test_three_thousand_cases():
    count = keys.tried(seed=1, cases=3000, most=6)
    assert not count.silent, [(way, key, file.text, words) for way, key, file, words in count.silent[:5]]


# --- one door -------------------------------------------------------------------------------------

REFUSED = [
    {**GAUSSIAN, "epochs": 3},
    {**GAUSSIAN, "batch_size": 10},
    {**GAUSSIAN, "epochs": 3, "dataset_size": 100},
    {**GAUSSIAN, "epochs": 3, "sampling_rate": 0.1},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "sampling_rate": 0.1},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "steps": 5, "epochs": 2},
    {**GAUSSIAN, "batch_size": 100, "dataset_size": 10},
    {**GAUSSIAN, "sampling": "fixed"},
    {**GAUSSIAN, "sampling": "fixd", "sampling_rate": 1},
    {**GAUSSIAN, "sampling": "", "sampling_rate": 0.5},
    {**GAUSSIAN, "relation": ""},
    {**GAUSSIAN, "split": "even"},
    {**GAUSSIAN, "split": "0.x"},
    {**GAUSSIAN, "dim": 8},
    {**GAUSSIAN, "bound": "rank-free"},
    {"mechanism": "m2", "layer": "768x16@", "noise_multiplier": 1},
    {"mechanism": "m2", "layer": " 768x16", "noise_multiplier": 1},
    {"mechanism": "m2", "layer": "768x16", "dim": 9, "noise_multiplier": 1},
    {"mechanism": "m2", "layer": "768x16", "rank": 4, "noise_multiplier": 1},
    {"mechanism": "m2", "dim": 64, "rank": 4, "clipping": "per-layer", "noise_multiplier": 1},
    {"mechanism": "m2", "dim": 64, "rank": 4, "gamma": 3, "noise_multiplier": 1},
    {"mechanism": "wishart", "dim": 64, "rank": 4, "misalignment": 1e-6, "alignment": 0.99},
    {"mechanism": "sketch", "rank": 4, "gamma": 30, "noise_sigma": 2},
    {"mechanism": "sketch", "rank": 4, "gamma": 30, "enforced": True},
]
ANSWERED = [
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 95, "epochs": 1.5},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "steps": 3},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "epochs": 2, "sampling": "fixed"},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "epochs": 2, "sampling": "partition", "relation": "zero-out"},
    {**GAUSSIAN, "sampling_rate": 0.25, "group_size": 2},
    {"mechanism": "m2", "layer": "64x4x2@1", "clipping": "per-layer", "noise_multiplier": 1},
]


def words_of(given):
    """The keys as a call of the command line."""
    rest = {key: value for key, value in given.items() if key != "mechanism"}
    options = [[f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])] for key, value in rest.items()]
    return ["epsilon", given["mechanism"], *(word for option in options for word in option), "--delta", "1e-5"]


def as_files(given):
    """The keys as a run file, a check file and a sweep file with the calls that read them."""
    grid = {**given, "grid": {"delta": [1e-5, 1e-6]}}
    checked = {"bound": [{**given, "delta": 1e-5, "at_most": 1e9}]}
    data = {"run": {"phase": [given]}, "check": checked, "sweep": grid}
    tails = {"run": ("--delta", "1e-5", "--json"), "check": (), "sweep": ("-o", "out.csv")}
    return [Case((kind, "in.json", *tails[kind]), {"in.json": json.dumps(data[kind]).encode()}) for kind in data]


@pytest.mark.parametrize("given", REFUSED, ids=str)
def test_what_the_command_line_refuses_files_refuse(given):
    assert call(Case(tuple(words_of(given)))).code == 2
    for case in as_files(given):
        seen = call(case)
        assert (seen.code, seen.err.count("\n"), seen.out) == (2, 1, ""), case
        assert "in.json" in seen.err and (case.words[0] == "sweep" or " 1" in seen.err)


@pytest.mark.parametrize("given", ANSWERED, ids=str)
def test_what_the_command_line_answers_files_answer_alike(given):
    spoken = json.loads(call(Case((*words_of(given), "--json"))).out)["value"]
    run, check, sweep = map(call, as_files(given))
    assert json.loads(run.out)["value"] == spoken
    assert f"epsilon = {spoken:.9g}" in check.out
    assert sweep.left["out.csv"].decode().splitlines()[1].split(",")[1] == repr(spoken)


def test_a_size_alone_serves_a_warning_on_the_command_line_and_nothing_in_files():
    given = {**GAUSSIAN, "dataset_size": 100}
    spoken = call(Case((*words_of(given)[:-1], "1e-2")))
    assert spoken.code == 0 and "below 1/N" in " ".join(spoken.out.split())
    assert all(call(case).code == 2 for case in as_files(given))


def test_an_answer_uses_every_one_of_batch_size_dataset_size_and_epochs():
    one = {"batch_size": 10, "dataset_size": 100, "epochs": 2}
    assert run_options_from_batches(one) == {"sampling_rate": 0.1, "steps": 20, "public_size": True}
    found = [run_options_from_batches({**one, key: 50}) for key in one]
    assert len({tuple(sorted(run.items())) for run in found}) == 3


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --delta 1e-6", "--delta"),
        ("epsilon gaussian --noise-multiplier 1 --noise-multiplier 2 --delta 1e-5", "--noise-multiplier"),
        ("epsilon m2 --dim 9 --rank 2 --noise-multiplier 1 --delta 1e-5 --bound gaussian --bound rank-free", "--bound"),
        ("compare gaussian --noise-multiplier 1 --delta 1e-5 --steps 3 --steps 4", "--steps"),
        ("run in.toml --delta 1e-5 --delta 1e-6", "--delta"),
        ("curve gaussian --noise-multiplier 1 --what delta --what trade-off", "--what"),
        ("epsilon wishart --dim 9 --rank 3 --misalignment 1e-6 --delta 1e-5 --clip 1", "--clip"),
        ("epsilon m2 --dim 9 --rank 2 --noise-multiplier 1 --delta 1e-5 --base x", "--base"),
        ("curve gaussian --noise-multiplier 1 --what trade-off --epsilon-max 3", "--epsilon-max"),
        (
            "dp-sft --public --share .5 --epsilon 4 --delta 1e-5 --sampling-rate .1 --subspace-steps 2 --steps 2",
            "--share",
        ),
        ("rate gaussian --noise-multiplier 1 --epsilon 1 --delta 1e-5 --dataset-size 100", "--dataset-size"),
    ],
)
def test_no_option_is_overruled_or_ignored(words, name):
    seen = call(Case(tuple(words.split())))
    assert seen.code == 2 and name in seen.err and not seen.out


def commands():
    """Every command with its options."""
    for name in COMMANDS:
        found = import_module("privproj_cli." + name.replace("-", "_")).command
        yield from found.commands.values() if isinstance(found, click.Group) else [found]


def test_every_option_with_one_value_is_guarded():
    options = [p for command in commands() for p in command.params if isinstance(p, click.Option)]
    valued = [o for o in options if not (o.is_flag or o.multiple)]
    assert len(valued) > 100 and all(isinstance(o, Once) for o in valued)


# --- keys and their types -------------------------------------------------------------------------


def test_doubled_keys_of_json_name_their_entry():
    text = (
        '{"phase": [{"mechanism": "gaussian", "noise_multiplier": 0.01}, {"steps": 3, "mechanism": "m2", "steps": 4}]}'
    )
    seen = call(Case(("run", "a.json", "--delta", "1e-5"), {"a.json": text.encode()}))
    assert seen.code == 2 and "a.json: phase 2: steps" in seen.err
    grid = '{"mechanism": "gaussian", "delta": 1e-5, "grid": {"steps": [1, 2], "noise_multiplier": [1], "steps": [3]}}'
    seen = call(Case(("sweep", "a.json", "-o", "o.csv"), {"a.json": grid.encode()}))
    assert seen.code == 2 and "grid: steps" in seen.err
    toml = "[[phase]]\nmechanism = 'gaussian'\nsteps = 3\nsteps = 4\n"
    seen = call(Case(("run", "a.toml", "--delta", "1e-5"), {"a.toml": toml.encode()}))
    assert seen.code == 2 and "steps = 4" in seen.err


@pytest.mark.parametrize("text", ["1e-400", "-1e-400", "0.000e5", "0.0"])
def test_a_number_of_a_file_that_underflows_is_not_taken_for_zero(text):
    data = f'[[bound]]\nquery = "delta"\nmechanism = "gaussian"\nnoise_multiplier = 1\nepsilon = {text}\nat_most = 1\n'
    seen = call(Case(("check", "a.toml"), {"a.toml": data.encode()}))
    assert seen.code == (2 if "1" in text else 0)
    assert "underflows" in seen.err or "1" not in text


@pytest.mark.parametrize(
    ("axes", "word"),
    [
        ({"steps": []}, "not empty"),
        ({"steps": 3}, "a list"),
        ({"steps": [3, 3]}, "different values"),
        ({"steps": [3, 3.0]}, "different values"),
        ({"steps": [3, "4"]}, "whole number"),
        ({"steps": [True, 2]}, "whole number"),
        ({"noise_multiplier": [3]}, "not both"),
        ({"noise-multiplier": [3]}, "not both"),
        ({"sampling-rate": [0.1], "sampling_rate": [0.2]}, "one spelling"),
        ({"query": ["epsilon"]}, "one of the keys"),
        ({"mechanism": ["m2"]}, "not both"),
        ({"epsilon": [1.0]}, "one of the keys"),
        ({"epochs": [1, 2]}, "batch_size"),
        ({"dim": [1, 2]}, "one of the keys"),
        ({}, "a table"),
    ],
)
def test_axes_of_a_sweep(axes, word):
    with pytest.raises(InvalidParameter, match="^expected .*" + word):
        grid_from({**GAUSSIAN, "delta": 1e-5, "grid": axes}, "g.toml")


def test_a_sweep_none_of_whose_points_is_a_question_is_refused():
    fixed = {"mechanism": "m2", "noise_multiplier": 1, "delta": 1e-5}
    assert len(grid_from({**fixed, "grid": {"dim": [4, 8], "rank": [6, 9]}})) == 4
    with pytest.raises(InvalidParameter, match="rank"):
        grid_from({**fixed, "grid": {"dim": [4, 8], "rank": [16, 9]}})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epsilon": 1.0}, "epsilon"),
        ({"delta": None}, "delta"),
        ({"rtol": 1e-3}, "rtol"),
        ({"rtol": -1.0, "expect": 1.0}, "rtol"),
        ({"composer": "nobody"}, "composer"),
        ({"query": "sigma", "epsilon": 1.0}, "noise_multiplier"),
        ({"query": "steps", "epsilon": 1.0, "steps": 3}, "steps"),
        ({"query": "rate", "epsilon": 1.0, "sampling_rate": 0.3}, "sampling_rate"),
        ({"query": 3}, "query"),
        ({"name": 3}, "name"),
    ],
)
def test_entries_of_a_check_file(changes, word):
    entry = {**GAUSSIAN, "delta": 1e-5, "at_most": 9, **changes}
    with pytest.raises(InvalidParameter, match=f"b.toml: entry 1: {word}"):
        entries_from({"bound": [entry]}, "b.toml")


def test_who_composes_is_asked_of_an_entry():
    entry = {**GAUSSIAN, "steps": 9, "sampling_rate": 0.1, "delta": 1e-5, "at_most": 9}
    assert entries_from({"bound": [{**entry, "composer": "dp-accounting"}]})[0].ask().numerics["composer"] != "privproj"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"relation": "replace", "phase": [{**GAUSSIAN, "relation": "replace"}]}, "phase 1: relation"),
        ({"phase": [{**GAUSSIAN, "discretization": 1e-3}]}, "phase 1: discretization"),
        ({"phase": [{**GAUSSIAN, "composer": "privproj"}]}, "phase 1: composer"),
        ({"phase": [GAUSSIAN], "discretization": "1e-3"}, "a.toml: discretization"),
        ({"phase": [GAUSSIAN], "discretization": 7}, "a.toml: discretization"),
        ({"phase": [GAUSSIAN], "composer": None}, "a.toml: composer"),
        ({"phase": [{**GAUSSIAN, "bound": None}]}, "phase 1: bound"),
        ({"phase": [{**GAUSSIAN, "steps": True}]}, "phase 1: steps"),
        ({"phase": [{**GAUSSIAN, "split": "even"}]}, "phase 1: split"),
        ({"phase": [{"mechanism": "m2", "layers": ["64x4"], "noise_multiplier": 1}]}, "phase 1: layers"),
        ({"phase": [{"mechanism": "m2", "layer": [], "noise_multiplier": 1}]}, "phase 1: layer"),
        (
            {"phase": [{"mechanism": "m2", "dim": 9, "rank": 2, "noise_multiplier": 1, "fixed_projection": "no"}]},
            "fixed",
        ),
        ({"phase": [GAUSSIAN, {**GAUSSIAN, "group_size": 4}]}, "a.toml: group_size"),
    ],
)
def test_keys_of_a_run_file(data, words):
    with pytest.raises(InvalidParameter, match=words):
        from_data(data, "a.toml")
    if "group_size" not in words and "split" not in words:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, SCHEMA)


@pytest.mark.parametrize("name", dict.fromkeys(kind for kind, _ in LINES))
def test_the_schema_of_run_files_has_the_keys_that_are_read(name):
    phase = SCHEMA["properties"]["phase"]["items"]
    known = {key for key in keys_of(mechanism_named(name), PHASE_KEYS) if key not in FOR_ALL or key == "relation"}
    rules = [rule["then"]["propertyNames"]["enum"] for rule in phase["allOf"]
             if name in rule.get("if", {}).get("properties", {}).get("mechanism", {}).get("enum", ())]  # fmt: skip
    assert [set(rule) for rule in rules] == [known] and known <= set(phase["properties"])
    assert set(SCHEMA["properties"]) == {*FOR_ALL, "phase"}


@pytest.mark.parametrize("kind", [M1, M2, Wishart, Sketch, PublicSketch])
def test_a_flag_is_true_or_false(kind):
    given = {"dim": 8, "rank": 2, "gamma": 30, "noise_multiplier": 1, "misalignment": 1e-6}
    own = {name: value for name, value in given.items() if name in kind.__dataclass_fields__ and kind is not M1}
    for flag in {"fixed_projection", "enforced"} & set(kind.__dataclass_fields__):
        for value in ("false", 1, 0, None, [True]):
            with pytest.raises(InvalidParameter, match="true or false"):
                kind(**{"dim": 8, "rank": 2} if kind is M1 else own, **{flag: value})


def test_a_layer_is_its_text():
    draw = random.Random(5)
    for _ in range(200):
        share = draw.choice([None, draw.random() or 0.5, 1 / draw.randint(1, 99)])
        layer = Layer(dim=draw.randint(9, 999), rank=draw.randint(1, 9), count=draw.randint(1, 99), share=share)
        assert Layer.parse(str(layer)) == layer
    for text in (
        "8",
        "8x",
        "8x4@",
        "8x4x",
        "x4",
        "8x4x2x1",
        "8x4@nan",
        "8 x4",
        "8_0x4",
        "\u0668x4",
        "8x4@-1",
        84,
        None,
    ):
        with pytest.raises(InvalidParameter, match="layer"):
            Layer.parse(text)


@pytest.mark.parametrize(
    ("quantity", "parameters"),
    [
        ("gaussian.analytic.epsilon", {"mu": 1, "noise_multiplier": 1, "delta": 1e-5}),
        ("gaussian.analytic.epsilon", {"mu": 1, "delta": 1e-5, "step": 3}),
        ("gaussian.analytic.epsilon", {"mu": 1, "delta": 1e-5, "epsilon": 3}),
        ("gaussian.analytic.sigma", {"mu": 1, "delta": 1e-5, "epsilon": 3}),
        ("gaussian.analytic.steps", {"mu": 1, "delta": 1e-5, "epsilon": 3, "steps": 3}),
        ("gaussian.analytic.rate", {"mu": 1, "delta": 1e-5, "epsilon": 3, "sampling_rate": 0.3}),
        ("wishart.exact.epsilon", {"dim": 9, "rank": 3, "rho": 0.9, "alignment": 0.9, "delta": 1e-5}),
        ("gaussian.analytic.epsilon", {"mu": 1, "delta": 1e-5, "allow_refuted": "no"}),
        ("m2.gaussian.epsilon", {"mu": 1, "dim": 9, "rank": 2, "delta": 1e-5, "fixed_projection": "false"}),
    ],
)
def test_evaluate_takes_no_parameter_twice_or_in_vain(quantity, parameters):
    with pytest.raises(InvalidParameter):
        privproj.evaluate(quantity, **parameters)


def test_what_a_query_finds_is_not_given():
    z = Gaussian(noise_multiplier=9.0)
    with pytest.raises(InvalidParameter, match="steps"):
        privproj.steps(z, epsilon=1.0, delta=1e-5, steps=3)
    with pytest.raises(InvalidParameter, match="sampling_rate"):
        privproj.rate(z, epsilon=1.0, delta=1e-5, sampling_rate=0.5)
    with pytest.raises(TypeError):
        privproj.epsilon(z, delta=1e-5, step=3)


# --- plans ----------------------------------------------------------------------------------------


def plan(*noise, done=()):
    """Planned Gaussian releases after those done."""
    later = [{**GAUSSIAN, "noise_multiplier": z, "planned": True, "name": f"p{i}"} for i, z in enumerate(noise)]
    return {"phase": [*({**GAUSSIAN, "noise_multiplier": z} for z in done), *later]}


def remaining(data, epsilon):
    case = Case(
        ("remaining", "a.json", "--epsilon", str(epsilon), "--delta", "1e-5"), {"a.json": json.dumps(data).encode()}
    )
    shown, spoken = call(Case((*case.words, "--json"), case.files)), call(case)
    assert shown.code == spoken.code
    return shown.code, json.loads(shown.out), " ".join(spoken.out.split())


@pytest.mark.parametrize(("done", "noise"), [((), (1.6, 1.6)), ((3.0,), (1.9, 1.9)), ((), (1.6, 4.0))])
def test_planned_phases_fit_together_or_not_at_all(done, noise):
    together = from_data(plan(*noise, done=done)).epsilon(delta=1e-5).value
    alone = [from_data(plan(z, done=done)).epsilon(delta=1e-5).value for z in noise]
    code, shown, text = remaining(plan(*noise, done=done), max(alone) * 1.01)
    assert max(alone) * 1.01 < together and code == 4 and not shown["fits"]
    assert [entry["would_exceed"] for entry in shown["phases"]] == [False, True]
    assert shown["phases"][1]["after"][-1] == "p0" and "would exceed" in text
    assert shown["epsilon_planned"] == pytest.approx(together, rel=1e-9, abs=0)
    code, shown, text = remaining(plan(*noise, done=done), together * 1.01)
    assert code == 0 and shown["fits"] and [entry["would_exceed"] for entry in shown["phases"]] == [False, False]


def test_remaining_says_what_it_rests_on():
    for data in (plan(3.0), plan(done=(3.0,)), plan(3.0, done=(3.0,))):
        _, shown, text = remaining(data, 3)
        assert PLAN_FIXED_IN_ADVANCE in shown["assumes"] and PLAN_FIXED_IN_ADVANCE in text
        assert {"bound", "status", "relation", "promises", "warnings"} <= set(shown)


def test_a_planned_phase_is_not_spent():
    spent = remaining(plan(2.0, done=(3.0,)), 9)[1]
    assert spent["epsilon_spent"] == from_data(plan(done=(3.0,))).epsilon(delta=1e-5).value < spent["epsilon_planned"]
    assert remaining(plan(2.0), 9)[1]["epsilon_spent"] == 0.0


def test_a_written_run_file_answers_as_the_one_it_came_from(tmp_path):
    phases = [{**GAUSSIAN, "steps": 9, "sampling_rate": 0.1}, {"mechanism": "m2", "layer": ["64x4@0.1", "32x4@0.9"],
              "clipping": "per-layer", "noise_multiplier": 2, "planned": True}]  # fmt: skip
    source = tmp_path / "a.toml"
    source.write_text(as_toml(phases, discretization=0.01))
    for ending in ("toml", "json"):
        target = tmp_path / f"b.{ending}"
        assert exit_code(["run", str(source), "--delta", "1e-5", "-o", str(target)]) == 0
        seen = [call(Case(("run", str(path), "--delta", "1e-5", "--json"))) for path in (source, target)]
        first, second = (json.loads(one.out) for one in seen)
        assert first["value"] == second["value"] and first["numerics"] == second["numerics"]
