"""The shape of the house: layers, one version, the README."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from privproj_cli.main import exit_code
from privproj_cli.render import bounds_markdown

import privproj
from privproj.bounds import LINES, registry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LAYERS = {
    "errors": 0, "relations": 0, "atomic": 0, "assumptions": 0,
    "numerics": 1, "kernels": 1, "reference": 1,
    "mechanisms": 2, "runs": 2, "result": 2,
    "profile": 3, "inversion": 3, "renyi": 3, "rules": 3, "random_sensitivity": 3, "arrays": 3,
    "lattice": 3, "composer": 3, "doubling": 3, "dp_composer": 3, "pld": 3,
    "gamma_gain": 3, "gamma_mills": 3, "wishart_panels": 3, "vector_wishart": 3,
    "wishart_promise": 3, "unequal_norms": 3, "unequal_cells": 3, "wishart_layers": 3,
    "alignment": 3, "energy": 3, "secret_shift": 3, "sketch_divergence": 3, "sketch_promise": 3, "lora_noise": 3,
    "target": 3, "rigorous": 4, "bound": 4, "bounds": 5, "one_column": 5,
    "beta_tail": 5, "good_event": 5, "early_tail": 5, "loss_quantiles": 5,
    "accountant": 6, "calibration": 7, "evaluation": 8, "certificate": 7,
    "strict_json": 1, "jobs": 1, "sweep": 9, "gain": 8, "audit": 11, "tradeoff": 4,
    "entries": 8, "schedule": 8, "regression": 9, "statement": 9, "integrations": 9, "ledger": 9, "training": 10,
}  # fmt: skip
NUMERICAL = {
    "arrays", "lattice", "composer", "doubling", "dp_composer",
    "gamma_gain", "gamma_mills", "wishart_panels", "vector_wishart",
    "unequal_norms", "unequal_cells", "wishart_layers",
    "symmetry", "energy", "secret_shift",
}  # fmt: skip
INTEGRATIONS = {"integrations/dp_accounting.py"}
LAZY = {"numba", "mpmath", "dp_accounting", "numpy", "scipy", "torch", "matplotlib"}


def imports(path):
    """``(module, at import time)`` for every import in a file."""
    tree = ast.parse(path.read_text())
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "."] if node.module != "privproj" else [f"privproj.{a.name}" for a in node.names]
            yield from ((name, node in top) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)


def room(path):
    """The name by which a file is known in :data:`LAYERS`."""
    parts = path.relative_to(ROOT / "privproj").with_suffix("").parts
    return parts[0]


@pytest.mark.parametrize("path", sorted((ROOT / "privproj").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    if path == ROOT / "privproj" / "__init__.py":
        return
    for name, at_import in imports(path):
        parts = name.split(".")
        if parts[0] == "privproj" and len(parts) > 1 and parts[1] in LAYERS:
            lower = LAYERS[parts[1]] <= LAYERS[room(path)]
            assert lower, f"{path.name} (layer {LAYERS[room(path)]}) imports {name}"
        assert parts[0] != "privproj_cli"
        if parts[0] in LAZY and at_import:
            rooms = ("training", "audit", "reference")
            slow = named(path) in INTEGRATIONS or path.stem in NUMERICAL or room(path) in rooms
            assert slow, f"{path.name} imports {name} at import time"


def test_there_are_no_import_cycles():
    graph = {}
    for path in (ROOT / "privproj").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = {n for n, _ in imports(path) if n.startswith("privproj.")} - {name}
    done = set()
    while len(done) < len(graph):
        ready = {n for n in graph if n not in done and not (graph[n] & set(graph)) - done}
        assert ready, f"a cycle among {sorted(set(graph) - done)}"
        done |= ready


def named(path):
    """A file's name, with its folder where that is an integration or a reference."""
    return f"{path.parent.name}/{path.name}" if path.parent.name in ("integrations", "reference") else path.name


def test_one_file_compiles_and_one_file_is_mpmath():
    users = {}
    for path in (ROOT / "privproj").rglob("*.py"):
        for name, _ in imports(path):
            users.setdefault(name.split(".")[0], set()).add(named(path))
    assert users["numba"] == {"kernels.py"}
    assert all(name.startswith("reference/") for name in users["mpmath"])
    assert users.get("dp_accounting", set()) == {"dp_composer.py", "integrations/dp_accounting.py"}
    training = {path.name for path in (ROOT / "privproj" / "training").glob("*.py")}
    assert users["torch"] <= training | {"release.py", "membership.py"}


def test_one_version_string():
    sources = [*(ROOT / "privproj").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    found = [path for path in sources if re.search(r'version.* = "\d', path.read_text())]
    assert [p.relative_to(ROOT) for p in found] == [Path("privproj/__init__.py")]
    assert privproj.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_every_line_of_the_registry_names_its_bound():
    assert tuple((bound.mechanism.name, bound.name) for bound in registry()) == LINES
    files = {path.stem for path in (ROOT / "privproj" / "bounds").glob("*.py")} - {"__init__"}
    assert files == {f"{kind}_{name}".replace("-", "_") for kind, name in LINES}


def test_public_names_resolve():
    for name in privproj.__all__:
        assert getattr(privproj, name) is not None


def test_readme_table_comes_from_the_registry():
    assert bounds_markdown(registry()) in README


COMMANDS = [
    line.removeprefix("$ ").removeprefix(".venv/bin/") for line in README.splitlines() if line.startswith("$ privproj")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_readme_commands_print_what_the_readme_says(line, capsys):
    assert exit_code(shlex.split(line.removeprefix("privproj "))) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first in README


def test_readme_shows_commands():
    assert len(COMMANDS) >= 3


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", EXAMPLES)
def test_readme_python_examples_print_what_they_say(block, capsys):
    if "torch" in block:
        pytest.importorskip("torch")
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed
    for line in printed:
        assert f"# {line}" in block


def test_ci_runs_the_command_of_the_readme():
    assert "pip install -q -c constraints.txt -e '.[test]'" in README
    assert "readme" in (ROOT / ".ci" / "run").read_text().lower()
