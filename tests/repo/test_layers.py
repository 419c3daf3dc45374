"""Import layers, lazy imports, the registry of bounds, and the public names of packages."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from helpers import ROOT, parsed

import privproj
import privproj.accounting
import privproj.io
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import registry

# The import layers, lowest first: a package imports packages of lower layers only.
LAYERS = (
    {"errors", "version", "assumptions"},
    {"parameters", "numerics", "lazy", "plugins"},
    {"result"},
    {"sampling", "targets"},
    {"run"},
    {"profiles"},
    {"distributions", "composition"},
    {"reference"},
    {"mechanisms"},
    {"accounting"},
    {"io"},
    {"schedule"},
    {"training"},
    {"integrations"},
    {"contrib"},
    {"__main__"},
)

# Modules that import numpy, scipy or dp-accounting at import time; all others do so when they need it.
NUMERICAL = {
    "numerics/arrays", "numerics/jit",
    "contrib/mixing/enforced_sketch",
    "distributions/tabulated", "distributions/densities", "distributions/binned", "distributions/binned_profile",
    "distributions/wishart_loss", "distributions/gamma_hockey_stick", "distributions/wishart_integral",
    "distributions/wishart_unequal_norms", "rigorous/grids", "rigorous/balls_in_bins",
    "composition/grid", "composition/dominating_pairs", "composition/fourier", "composition/repeated_squaring",
    "composition/balls_in_bins", "composition/several_batches", "composition/group_privacy", "composition/moments",
    "composition/tails", "composition/truncated_step", "accounting/vectorized",
    "contrib/events/pld_curve", "contrib/events/event_composition",
}  # fmt: skip

SLOW_PACKAGES = {"training", "contrib", "reference"}

SLOW_MODULES = {"integrations/dp_accounting"}

LAZY = {"numba", "mpmath", "dp_accounting", "numpy", "scipy", "torch", "matplotlib"}


def is_module(name):
    """Return whether a name is a module or package of privproj."""
    place = ROOT.joinpath(*name.split("."))
    return name.startswith("privproj") and (place.is_dir() or place.with_suffix(".py").exists())


@cache
def imports(path):
    """Return ``(module, at import time)`` for every import in a file."""
    return list(_imports(parsed(path)))


def _imports(tree):
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [
                f"{node.module}.{a.name}" if is_module(f"{node.module}.{a.name}") else node.module for a in node.names
            ]
            yield from ((name, node in top) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)


def package_of(path):
    """Return the name of a module in :data:`LAYERS`."""
    return path.relative_to(ROOT / "privproj").with_suffix("").parts[0]


def layer_of(name):
    """Return the number of the layer of a package."""
    return next(number for number, layer in enumerate(LAYERS) if name in layer)


SOURCES = [path for path in sorted((ROOT / "privproj").rglob("*.py")) if path != ROOT / "privproj" / "__init__.py"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_package_imports_lower_layers_only(path):
    here = package_of(path)
    for name, _ in imports(path):
        parts = name.split(".")
        # A feature adds commands, and documents that `privproj verify` checks.
        adds_commands = here == "contrib" and path.stem in ("command", "document")
        assert parts[0] != "privproj_cli" or here == "__main__" or adds_commands
        if parts[0] == "privproj" and len(parts) > 1 and parts[1] != here:
            assert layer_of(parts[1]) < layer_of(here), f"{path.name} (in {here}) imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_slow_packages_are_imported_lazily(path):
    named = str(path.relative_to(ROOT / "privproj").with_suffix(""))
    if package_of(path) not in SLOW_PACKAGES and named not in NUMERICAL | SLOW_MODULES:
        assert not [name for name, at_import in imports(path) if at_import and name.split(".")[0] in LAZY]


def test_import_privproj_loads_no_subpackage():
    loads = [name for name, at_import in imports(ROOT / "privproj" / "__init__.py") if at_import]
    assert [name for name in loads if name.startswith("privproj")] == ["privproj.lazy", "privproj.version"]


def test_packages_are_in_layer_and_have_docstrings():
    folders = {path for path in (ROOT / "privproj").iterdir() if path.is_dir() and path.name != "__pycache__"}
    top = {path.stem for path in (ROOT / "privproj").glob("*.py")} - {"__init__"}
    assert {path.name for path in folders} | top == set().union(*LAYERS)
    for init in (ROOT / "privproj").rglob("__init__.py"):
        assert ast.get_docstring(parsed(init)), init


def test_imports_have_no_cycles():
    graph = {}
    for path in (ROOT / "privproj").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = {n for n, _ in imports(path) if n.startswith("privproj.")} - {name}
    done = set()
    while len(done) < len(graph):
        ready = {n for n in graph if n not in done and not (graph[n] & set(graph)) - done}
        assert ready, f"a cycle among {sorted(set(graph) - done)}"
        done |= ready


def test_slow_packages_are_used_in_known_modules():
    users = {}
    for path in SOURCES:
        for name, _ in imports(path):
            users.setdefault(name.split(".")[0], set()).add(str(path.relative_to(ROOT / "privproj").with_suffix("")))
    assert users["numba"] == {"numerics/jit"}
    of_references = {name for name in users["mpmath"] if name.startswith("reference/") or name.endswith("/reference")}
    assert users["mpmath"] - of_references == {"accounting/digits", "mechanisms/m1/known_projection"}
    core = {name for name in users["dp_accounting"] if not name.startswith("contrib/")}
    assert core == {"integrations/dp_accounting"}
    assert {name.split("/")[0] for name in users["torch"]} <= {"training", "integrations", "contrib"}


def test_registry_lists_every_bound():
    """Every record in a module of mechanisms, or of a feature with bounds, is in the registry and no other."""
    folder = ROOT / "privproj"
    modules = [*folder.glob("mechanisms/**/*.py"), *folder.glob("contrib/*/*.py")]
    modules = [
        path for path in modules if re.search(r"^\w+ = \w*Bound\w*\(|_without_a_number", path.read_text(), re.MULTILINE)
    ]
    assert len(modules) > 10
    listed = [(bound.mechanism.name, bound.name) for bound in registry()]
    defined = {
        (value.mechanism.name, value.name)
        for path in modules
        for value in vars(import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))).values()
        if isinstance(value, Bound)
    }
    assert len(listed) == len(set(listed)) and defined == set(listed)


def test_registry_proofs_are_claims_of_proofs_page():
    claims = set(re.findall(r"^## (C\d+) ", (ROOT / "docs" / "proofs.md").read_text(), re.MULTILINE))
    for bound in registry():
        assert not bound.proof or bound.proof in claims, bound.name
        assert bound.proof or not bound.source.startswith("privproj"), bound.name
        assert "privproj." not in bound.source + bound.formula, bound.name


STUBS = sorted((ROOT / "privproj").rglob("__init__.pyi"))


@pytest.mark.parametrize(
    "package", [str(path.parent.relative_to(ROOT / "privproj")).replace("/", ".").strip(".") for path in STUBS]
)
def test_stub_lists_exactly_public_names(package):
    module = import_module(f"privproj.{package}".rstrip("."))
    stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())
    names = [alias for node in stub.body for alias in node.names if not alias.name.startswith("_")]
    assert all(alias.asname == alias.name for alias in names)
    assert sorted(module.__all__) == sorted(alias.name for alias in names)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("module", [privproj, privproj.accounting, privproj.io])
def test_public_names_resolve(module):
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_tests_declare_extras_by_needs():
    skips = re.compile(r"importorskip\((?!\"numba\")")
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "test_layers.py"]
    assert not [path.name for path in files if skips.search(path.read_text())]
