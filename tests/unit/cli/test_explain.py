"""``privproj explain`` has an entry for every name that the output, the options and the source papers use."""

import ast
import json
import re
from enum import StrEnum

import pytest
from helpers import ROOT, SECONDS, full_if, ids, needs, parsed
from privproj_cli.explain import all_entries, claims, data, entries, spelling, word_groups
from privproj_cli.main import command_groups

from privproj import errors
from privproj.assumptions import DataAssumption, RequirementText
from privproj.mechanisms.methods import METHODS
from privproj.mechanisms.registry import bound_names, mechanism_names, registry
from privproj.result import Outcome, Side, Status
from privproj.sampling import SCHEMES, NeighboringRelation, Sampling
from privproj.training.algorithms import ALGORITHMS

GROUPS = word_groups()
TEXTS = [entry for group in GROUPS for entry in group["word"]]
ENUMS: tuple[type[StrEnum], ...] = (Outcome, Status, Side, NeighboringRelation, Sampling)
LABEL = re.compile(r"^  ([a-z]+(?: [a-z]+)?): ", re.MULTILINE)


def entries_of_kind(name, kind):
    return [entry for entry in entries(GROUPS, name) if entry["kind"] == kind]


# --- coverage: names are collected from the code ------------------------------------------------------


@pytest.mark.parametrize("name", [*(str(member) for kind in ENUMS for member in kind), *mechanism_names()])
def test_explain_covers_values_and_mechanisms(name):
    assert entries(GROUPS, name)


def test_explain_covers_exit_codes():
    raised = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    for code in raised | set(errors.EXIT_CODES):
        assert entries_of_kind(str(code), "exit code")


@pytest.mark.parametrize("line", bound_names(), ids=".".join)
def test_explain_covers_bounds(line):
    found = [entry for entry in entries(GROUPS, line[1]) if entry["name"] == ".".join(line)]
    assert len(found) == 1 and line[0] in found[0]["means"]
    assert ".".join(line) in [entry["name"] for entry in entries(GROUPS, ".".join(line))]


def requirement_classes(base=RequirementText):
    return {base, *(kind for child in base.__subclasses__() for kind in requirement_classes(child))}


def test_explain_covers_requirements_and_assumptions():
    requirements = [member for kind in requirement_classes() for member in kind]
    assert len(requirements) > 40
    for member in requirements:
        assert entries_of_kind(member.short, "requirement")[0]["means"].lower().rstrip(".") == member.lower().rstrip(
            "."
        )
    for kind in DataAssumption:
        assert entries(GROUPS, kind.short)


def test_explain_covers_commands_and_training_algorithms():
    for name in (name for commands in command_groups().values() for name in commands):
        assert entries_of_kind(name, "command")
    for name in ALGORITHMS:
        assert entries_of_kind(name, "training algorithm") or entries_of_kind(name, "mechanism")


def keys_of(schema):
    """Yield the names of the keys that a JSON schema describes, at all levels."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from keys_of(part)


def test_explain_covers_keys_of_json_schema():
    keys = set(keys_of(json.loads((ROOT / "privproj" / "schema.json").read_text())))
    assert {"value", "side", "numerics", "run"} <= keys
    missing = [key for key in sorted(keys) if not covered(key)]
    assert not missing


JSON_COMMANDS = [
    "epsilon m2 --dim 64 --rank 4 --noise-multiplier 3 --steps 3 --sampling-rate 0.1 --delta 1e-5 --json",
    "epsilon gaussian --noise-multiplier 1 --sampling shuffle --batches 10 --delta 1e-5 --json",
    "epsilon gaussian --noise-multiplier 1 --batch-size 9 --dataset-size 99 --max-batch-size 40 --steps 9 --delta 1e-5"
    " --json",
    "choose --layer 64x4x2 --sampling-rate 0.1 --steps 3 --epsilon 4 --delta 1e-5 --json",
    "remaining {run} --epsilon 4 --delta 1e-5 --json",
    "filter {run} --epsilon 4 --delta 1e-5 --json",
    "run {run} --gdp --json",
    "select gaussian --noise-multiplier 2 --trials 10 --delta 1e-5 --json",
    "ledger {ledger} --json",
    "verify {ledger} --json",
    "bounds rank-free --json",
    "explain m2 --json",
    "check {check} --json",
    "sweep {grid} -o {table} --json",
    "compare m2 --dim 64 --rank 4 --noise-multiplier 3 --delta 1e-5 --json",
    "curve gaussian --noise-multiplier 1 --style json",
    "curve gaussian --noise-multiplier 1 --what trade-off --style json",
    "curve gaussian --noise-multiplier 1 --what gdp --style json",
    "verify {statement} --json",
    "verify {statement} {ledger} --json",
    "certify epsilon gaussian --noise-multiplier 1 --delta 1e-5 --json",
    "audit symmetry --dim 16 --columns 4 --rank 4 --json",
    "lora-noise --rank 16 --entry 0.1 --row-norm 1 --json",
]


def keys_in(value):
    """Yield the keys of a JSON value at all levels; sentences are not keys."""
    if isinstance(value, dict):
        yield from (key for key in value if " " not in key)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys_in(part)


@pytest.mark.full
@pytest.mark.parametrize("line", JSON_COMMANDS, ids=lambda line: line.split(" --")[0])
def test_explain_covers_json_keys(line, run, tmp_path):
    printed = json.loads(run_of(line, run, tmp_path))
    assert not [key for key in sorted(set(keys_in(printed))) if not covered(key)]


def run_of(line, run, tmp_path):
    """Return the output of a command on an example ledger or run file; skips without the feature of the command."""
    present = {name for commands in command_groups().values() for name in commands}
    if not {line.split()[0], *(["report"] if "{statement}" in line else [])} <= present:
        pytest.skip("a command of an optional feature")
    named = {"ledger": ROOT / "examples" / "ledger.jsonl", "table": tmp_path / "table.csv"}
    named |= {name: tmp_path / f"{name}.toml" for name in ("run", "check", "grid")}
    query = 'mechanism = "gaussian"\nquery = "epsilon"\ndelta = 1e-5\n'
    named["run"].write_text('[[phase]]\nname = "phase"\nmechanism = "gaussian"\nnoise_multiplier = 3\n')
    named["check"].write_text(f"[[bound]]\n{query}noise_multiplier = 3\nat_most = 9\n")
    named["grid"].write_text(f"{query}[grid]\nnoise_multiplier = [1, 2]\n")
    if "{statement}" in line:
        named["statement"] = tmp_path / "statement.md"
        assert run(f"report ledger {named['ledger']} -o {named['statement']}")[0] == 0
    if line.startswith("certify"):
        needs("flint")
    return run(line.format(**named))[1]


def covered(name):
    try:
        return bool(entries(GROUPS, name))
    except errors.InvalidParameterError:
        return False


def trees(pattern, *folders):
    """Return the parsed programs of the folders whose source contains the pattern."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [parsed(path) for path in paths if re.search(pattern, path.read_text())]


RENDERERS = ("label_lines", "labeled", "answer_text", "render_verdict", "result_text")


def test_explain_covers_labels_of_renderers():
    """Labels are the keys of tables that are passed to a function that prints labels."""
    labels = set()
    for tree in trees("|".join(RENDERERS), "cli", "privproj"):
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            called = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            names = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in called}
            if not names & set(RENDERERS):
                continue
            passed = [part for node in called for part in (*node.args, *(key.value for key in node.keywords))]
            tables = [part for part in passed if isinstance(part, ast.Dict)]
            tables += [
                table
                for node in ast.walk(function)
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None
                and ast.unparse(getattr(node, "target", None) or node.targets[0]) in ("parts", "details")
                for table in ast.walk(node.value)
                if isinstance(table, ast.Dict)
            ]  # fmt: skip
            keys = [key for table in tables for key in table.keys if isinstance(key, ast.Constant)]
            labels |= {key.value for key in keys if re.fullmatch(r"[a-z]+( [a-z]+)*", str(key.value))}
    assert len(labels) > 15
    assert not [label for label in sorted(labels) if not covered(label)]


@pytest.mark.parametrize(
    "line",
    [
        "epsilon m2 --dim 64 --rank 4 --noise-multiplier 3 --steps 3 --sampling-rate 0.1 --delta 1e-5 --clip 1 -v",
        "epsilon m2 --dim 64 --rank 4 --noise-multiplier 0.1 --delta 1e-5 --dataset-size 10",
        "epsilon wishart --dim 64 --rank 4 --misalignment 1e-4 --delta 1e-5",
        "choose --layer 64x4x2 --sampling-rate 0.1 --steps 3 --epsilon 4 --delta 1e-5",
        "remaining {run} --epsilon 4 --delta 1e-5",
        "filter {run} --epsilon 4 --delta 1e-5",
        "run {run} --gdp",
        "select gaussian --noise-multiplier 2 --trials 10 --delta 1e-5",
        "ledger {ledger}",
        "verify {ledger}",
        "bounds wishart.rp-gd",
    ],
)
def test_explain_covers_printed_labels(line, run, tmp_path):
    labels = LABEL.findall(run_of(line, run, tmp_path))
    assert len(labels) > 1
    assert not [label for label in labels if not covered(label)]


def longest_text(node):
    """Return the longest constant part of a string of a program."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return max((part.value for part in parts if isinstance(part, ast.Constant)), key=len, default="")


def warnings_in(tree, constants):
    """Yield the texts that a module uses as warnings: arguments of ``warn``, and what is added to warnings or notes."""
    for node in ast.walk(tree):
        used = []
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            used += node.args[:1] if name.endswith((".warn", "warnings.append", "notes.append")) else []
            used += [key.value for key in node.keywords if key.arg == "warnings"]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_warning = any("warnings" in ast.unparse(target) or ast.unparse(target) == "notes" for target in targets)
            used += [node.value] * is_warning
        elif isinstance(node, ast.FunctionDef) and (node.name == "notes" or node.name.startswith("warnings_of")):
            used += [part.value for part in ast.walk(node) if isinstance(part, ast.Return | ast.Yield) and part.value]
        for part in (part for expression in used for part in ast.walk(expression)):
            if isinstance(part, ast.Name):
                yield constants.get(part.id, "")
            elif isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str)):
                yield longest_text(part)


def test_explain_covers_warnings():
    found, programs = set(), trees("warn|notes|NOTE", "privproj")
    constants = {
        node.targets[0].id: node.value.value
        for tree in programs
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) and " " in node.value.value
    }  # fmt: skip
    for tree in programs:
        found |= {text for text in warnings_in(tree, constants) if len(text.split()) > 3}
    found |= {scheme.why_default for scheme in SCHEMES.values() if scheme.why_default}
    assert len(found) > 20
    assert not [text for text in sorted(found) if not covered(text)]


NAMES_THAT_USERS_TYPE = """
PRISM, DP-SFT, SGM, SGMM, BandMF, BLT, BISR, lambda-CGD, BIFR, DP-Muon, FedASK, LA-LoRA, RoLoRA,
FedPower, DP-FedLoRA, D2P2-SGD, GEP, PDP-SGD, PE-SGD, TP-TopK, DP-SAPF, AdaDPIGU, CSGM, sparsified Gaussian,
product noise, BiTFiT, AUTO-S, automatic clipping, DiSK, DOPPLER, MicroAdam, gradient denoising, PLD,
privacy loss distribution, Renyi, RDP, zCDP, GDP, truncated Poisson, b-min-sep, cyclic Poisson, random allocation,
user-level, DP-SGD, DP-Adam, DP-FTRL, DP-MF, DP-GRAPE, GaLore, Flora, RGP, DP-LoRA, FFA-LoRA, DP-ZO, DPZero,
R1SMG, RP-GD, LoRA-FA, M1, M2, Wishart, PowerDP, FedAvg, Opacus, dp-accounting"""
TERMS_THAT_USERS_TYPE = {
    "RDP": "gaussian", "Renyi": "gaussian", "zCDP": "gaussian", "GDP": "gaussian", "PLD": "privproj",
    "privacy loss distribution": "privproj", "truncated Poisson": "--max-batch-size", "b-min-sep": "no sampling scheme",
    "cyclic Poisson": "no sampling scheme", "random allocation": "--batches-per-record", "user-level": "--group-size",
}  # fmt: skip


@pytest.mark.parametrize("name", " ".join(NAMES_THAT_USERS_TYPE.split()).split(", "))
def test_explain_covers_names_of_source_papers(name):
    assert entries(GROUPS, name)


@pytest.mark.parametrize(("name", "remedy"), TERMS_THAT_USERS_TYPE.items())
def test_explain_states_support_of_terms(name, remedy):
    assert any(remedy in f"{entry['means']} {entry.get('more', '')}" for entry in entries(GROUPS, name))


def test_explain_states_mechanism_and_mistake_of_methods():
    for method in METHODS:
        (entry,) = entries_of_kind(method.name, "method")
        assert all(mechanism in entry["means"] for mechanism in method.mechanisms)
        assert method.mechanisms or "No mechanism of privproj" in entry["means"]
        assert method.source in entry["means"] and method.mistake in entry["means"]


# --- entries ------------------------------------------------------------------------------------------


def test_mechanism_without_entry_is_explained_by_its_summary(monkeypatch):
    arguments = data("words")
    for group in arguments["group"]:
        group["word"] = [entry for entry in group["word"] if entry["name"] != "laplace"]
    monkeypatch.setattr("privproj_cli.explain.data", lambda name: arguments if name == "words" else data(name))
    (laplace,) = [entry for entry in entries(word_groups(), "laplace") if entry["kind"] == "mechanism"]
    assert laplace["means"] == "Add Laplace noise to a vector."


def test_entries_are_whole_sentences():
    own = [entry for entry in all_entries(GROUPS) if entry.pop("kind") != "command"]
    for entry in own:
        assert set(entry) <= {"name", "also", "means", "more", "cases", "see", "own", "texts"}
        texts = [entry["means"], entry.get("more", "."), *(case["instead"] for case in entry.get("cases", ()))]
        assert all(re.match(r"[A-Z.`]|--|privproj|1 - cos", text) for text in texts), entry["name"]
        assert all(text.endswith((".", ".)")) for text in texts), entry["name"]


def test_names_are_unique_among_entries_of_kind():
    own = [entry for entry in all_entries(GROUPS) if entry["kind"] not in ("command", "JSON key")]
    pairs = [
        (entry["kind"], spelling(name)) for entry in own for name in (entry["name"], *entry.get("also", ()))
    ]  # fmt: skip
    assert len(set(pairs)) == len(pairs)


def test_related_entries_exist():
    for name in (name for entry in TEXTS for name in entry.get("see", ())):
        assert entries(GROUPS, name)


def test_commands_named_in_entries_exist():
    names = {name for commands in command_groups().values() for name in commands}
    assert set(re.findall(r"`privproj ([a-z-]+)", json.dumps(GROUPS))) <= names


def test_explain_prints_one_entry_or_lists_all(run):
    code, out, err = run("explain noise multiplier")
    assert (code, err) == (0, "") and out.startswith("noise multiplier  (") and len(out.splitlines()) < 10
    for other in ("NOISE-multiplier", "noise_multiplier", "NoiseMultiplier"):
        assert run(f"explain {other}") == (code, out, err)
    listed = " ".join(run("explain")[1].split())
    assert all(entry["name"] in listed for entry in TEXTS)
    names = [name for entry in TEXTS for name in (entry["name"], *entry.get("also", ()))]
    assert all(len(line) <= 100 for name in ("", *names[::5]) for line in run(f"explain -- {name}")[1].splitlines())


def test_explain_accepts_text_of_warning(run):
    code, out, _ = run("explain delta is not below 1/N")
    assert code == 0 and out.startswith("large delta  (warning)")


def test_explain_covers_claims_with_their_place():
    proofs = (ROOT / "docs" / "proofs.md").read_text()
    titles = dict(re.findall(r"^## (C\d+) (.*)$", proofs, re.MULTILINE))
    assert list(claims()) == sorted(titles, key=lambda name: int(name[1:])) and len(titles) > 30
    for name, title in titles.items():
        (found,) = entries(GROUPS, name.lower())
        assert found["means"].startswith(f"{title}.") and f"docs/proofs.md#{name.lower()}" in found["means"]
        assert f'<a id="{name.lower()}"></a>' in proofs and not {"$", "`", "["} & set(found["means"])
        assert found["see"] == [f"{b.mechanism.name}.{b.name}" for b in registry() if b.proof == name]


def test_explain_json_has_same_entries(run):
    assert [e["name"] for e in json.loads(run("explain --json")[1])["results"]] == [e["name"] for e in TEXTS]
    assert {e["name"] for e in json.loads(run("explain exact --json")[1])["results"]} == {
        "exact", *(f"{kind}.exact" for kind, name in bound_names() if name == "exact"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "meant"), [("vacuus", "vacuous"), ("rankfre", "rank-free"), ("zero out x", "zero-out")]
)
def test_unknown_term_gets_close_matches(word, meant, run):
    code, out, err = run(f"explain {word}")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert meant in err.partition("did you mean")[2]
    assert "privproj explain" in run("explain zzzzzzz")[2]


# --- the catalog of bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", full_if(registry(), lambda b: b.name in SECONDS), ids=ids)
def test_bounds_example_works(run, bound):
    code, out, _ = run(f"bounds {bound.mechanism.name}.{bound.name}")
    out = " ".join(out.split())
    assert code == 0 and bound.source.split(",")[0] in out and bound.example.split()[-1] in out
    assert run(bound.example.removeprefix("privproj "))[0] == 0


def test_bounds_of_mechanism_are_listed(run):
    code, out, _ = run("bounds sketch-public")
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["sketch-public", "rank-free"], ["sketch-public", "exact-rank1"], ["sketch-public", "operator-norm"]
    ]  # fmt: skip
    # gaussian is also the name of a bound of m2
    out = run("bounds gaussian")[1]
    assert "m2.gaussian" in out and "analytic" in out and "rank-free" not in out
