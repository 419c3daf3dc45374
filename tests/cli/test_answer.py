"""A plain question loads what it needs and no more."""

import subprocess
import sys

GAUSSIAN = "epsilon gaussian --noise-multiplier 1 --delta 1e-5"


def loaded(line):
    """What the command line imports for a question, in a process of its own."""
    code = "import sys; from privproj_cli.main import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


NEEDED = {
    "", ".accounting", ".accounting.phase", ".accounting.question", ".accounting.remarks", ".assumptions",
    ".composition", ".composition.compose", ".curves", ".curves.columns", ".curves.gaussian", ".curves.inversion",
    ".curves.profile", ".errors", ".lazy", ".mechanisms", ".mechanisms.base", ".mechanisms.bound",
    ".mechanisms.gaussian", ".mechanisms.gaussian.analytic", ".mechanisms.registry", ".numerics",
    ".numerics.enclosure", ".numerics.inverse_kernels", ".numerics.kernels", ".numerics.search", ".numerics.tables",
    ".result", ".runs", ".runs.sampling", ".runs.targets", ".validation", ".version",
}  # fmt: skip
"""The modules of the package that an epsilon of plain Gaussian noise needs: each costs every such answer its time."""

DEAR = {"numpy", "scipy", "numba", "mpmath", "json", "importlib.metadata"}
"""Modules of others that it does without."""


def test_an_epsilon_of_gaussian_noise_loads_what_it_needs_and_no_more():
    modules = loaded(GAUSSIAN)
    own = {name.removeprefix("privproj") for name in modules if name.split(".")[0] == "privproj"}
    assert own <= NEEDED, own - NEEDED
    assert not modules & DEAR


def test_a_question_loads_one_mechanism_and_the_bounds_that_it_names():
    modules = loaded("delta laplace --noise-multiplier 1 --epsilon 1")
    kinds = {name for name in modules if name.startswith("privproj.mechanisms.")}
    own = {"laplace", "laplace.exact"}
    assert kinds == {f"privproj.mechanisms.{name}" for name in ("base", "bound", "registry", *own)}
