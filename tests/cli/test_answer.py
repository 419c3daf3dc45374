"""A plain question is answered without click, and as click would have it answered."""

import subprocess
import sys

import pytest
from privproj_cli.answer import plain_question
from privproj_cli.declared import QUANTITIES, example_words
from privproj_cli.main import exit_code

from privproj.mechanisms.registry import mechanism_named

GAUSSIAN = "epsilon gaussian --noise-multiplier 1 --delta 1e-5"

TARGETS = {"epsilon": "--delta 1e-5", "delta": "--epsilon 1"}

PLAIN = [
    *(
        " ".join([quantity, name, *example_words(name, quantity), TARGETS.get(quantity, "--epsilon 1 --delta 1e-5")])
        for quantity in ("epsilon", "delta", "sigma")
        for name in ("gaussian", "laplace", "m2", "sketch-public", "wishart-matrix")
        if QUANTITIES[quantity](mechanism_named(name))
    ),
    f"{GAUSSIAN} --json",
    f"{GAUSSIAN} --bound classical --allow-refuted",
    f"{GAUSSIAN} --bound classical",
    f"{GAUSSIAN} --bound nonsense",
    f"{GAUSSIAN} --steps 3 --sampling partition --relation replace --clip 2 --dataset-size 10",
    f"{GAUSSIAN} --split even",
    f"{GAUSSIAN} --split x",
    "epsilon gaussian --noise-multiplier 1 --log10-delta -1000",
    "epsilon gaussian --noise-multiplier 1",
    "epsilon gaussian --noise-multiplier -1 --delta 1e-5",
    "steps gaussian --noise-multiplier 50 --epsilon 1 --delta 1e-5",
    "epsilon m2 --dim 64 --rank 4 --fixed-projection --steps 2 --noise-multiplier 1 --delta 1e-5",
    "epsilon m2 --dim 64 --rank 4 --noise-multiplier 1 --delta 1e-5 --clipping joint",
    "epsilon wishart --dim 9 --rank 3 --misalignment 1e-6 --delta 1e-5 --clip 1",
]
"""Questions whose words are plain, answers and refusals."""

NOT_PLAIN = [
    "epsilon gaussian --noise-multiplier=1 --delta 1e-5",
    "epsilon gaussian --noise-mult 1 --delta 1e-5",
    "epsilon gaussian --delta 1e-5 --epochs",
    "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --delta 1e-5",
    "epsilon gaussian --noise-multiplier 1 --delta 1% ",
    "epsilon gaussian --noise-multiplier 1 --delta 1e-400",
    "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --bound --json",
    "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --sampling poison",
    "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --help",
    "epsilon gaussian --noise-multiplier 1 --delta 1e-5 more",
    "epsilon m2 --layer 64x4 --noise-multiplier 1 --delta 1e-5",
    "epsilon martian --noise-multiplier 1 --delta 1e-5",
    "rank gaussian --epsilon 1 --delta 1e-5",
    "sigma gaussian --delta 1e-5 --noise-multiplier 1",
    "compare gaussian --noise-multiplier 1 --delta 1e-5",
]
"""Words that only click reads: other ways of writing, other types, mistakes."""


def answered(ask, capsys):
    """What is printed, the exit code, and the error."""
    try:
        code = ask()
    except Exception as error:
        code = type(error), str(error)
    return code, *capsys.readouterr()


@pytest.mark.parametrize("line", PLAIN)
def test_both_doors_give_one_answer(line, capsys, monkeypatch):
    words = line.split()
    assert plain_question(words) is not None or "--delta" not in words
    plain = answered(lambda: exit_code(words), capsys)
    monkeypatch.setattr("privproj_cli.main.answer_plain_question", lambda words: None)
    assert answered(lambda: exit_code(words), capsys) == plain


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_click(line):
    assert plain_question(line.split()) is None


def loaded(line):
    """What the command line imports for a question, in a process of its own."""
    code = "import sys; from privproj_cli.main import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


NEEDED = {
    "", ".accounting", ".accounting.at_least", ".accounting.batch_remarks", ".accounting.phase",
    ".accounting.queries", ".accounting.question", ".assumptions",
    ".composition", ".composition.compose", ".curves", ".curves.columns", ".curves.gaussian", ".curves.inversion",
    ".curves.profile", ".errors", ".lazy", ".mechanisms", ".mechanisms.base", ".mechanisms.bound",
    ".mechanisms.gaussian", ".mechanisms.gaussian.analytic", ".mechanisms.registry", ".numerics",
    ".numerics.enclosure", ".numerics.inverse_kernels", ".numerics.kernels", ".numerics.search", ".numerics.tables",
    ".result", ".runs", ".runs.sampling", ".runs.targets", ".validation", ".version",
}  # fmt: skip
"""The modules of the package that an epsilon of plain Gaussian noise needs: each costs every such answer its time."""

DEAR = {"numpy", "scipy", "numba", "mpmath", "click", "json", "ast", "difflib", "textwrap", "importlib.metadata"}
"""Modules of others that it does without; ``ast`` stands for ``inspect``."""


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


def test_a_module_whose_import_is_delayed_is_there_when_it_is_used():
    code = (
        "import sys; from privproj_cli.main import delay_import; delay_import('inspect'); import inspect;"
        "assert 'ast' not in sys.modules; assert inspect.isclass(int); from inspect import signature;"
        "assert 'ast' in sys.modules and sys.modules['inspect'].signature is signature"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
