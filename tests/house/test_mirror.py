"""The law of ``privproj/a/b.py`` is found at ``tests/a/test_b.py``, or it is said here why not."""

import re

import pytest
from helpers import ROOT

from privproj.training.algorithms import FILES

ELSEWHERE = {
    "__main__": "the same command line: tests/cli/test_main.py",
    "version": "tests/house/test_version.py",
    "result": "every bound's result: tests/mechanisms/test_every_bound.py",
    "lazy": "public names resolve: tests/house/test_street.py, tests/training/test_registry.py",
    "schedule": "the public door of accounting/schedule",
    **dict.fromkeys(
        ("mechanisms/bound", "mechanisms/registry"),
        "the registry: tests/mechanisms/test_every_bound.py, tests/house/test_street.py",
    ),
    "mechanisms/laplace": "tests/mechanisms/test_every_bound.py, tests/composition/test_compose.py",
    "mechanisms/refuted": "tests/audit/test_symmetry.py, tests/mechanisms/test_r1smg.py, test_sketch.py",
    "accounting/comparison": "tests/accounting/test_question.py; the gain line: tests/cli/test_render.py",
    "accounting/column_kernels": "columns against scalars, and asked back: tests/accounting/test_columns.py",
    "accounting/first_guess": "where to look, never what to claim: tests/accounting/test_calibration.py",
    "audit/faults": "names of faults: tests/audit/test_scenes.py plants each",
    "composition/good_event": "tests/accounting/test_question.py: the reference run",
    "runs/targets": "what may be asked: tests/accounting/test_calibration.py, tests/accounting/test_attack_risk.py",
    "curves/epsilon_delta": "rules: tests/mechanisms/test_every_bound.py",
    "curves/profile": "tests/mechanisms/test_every_bound.py",
    "numerics/arrays": "arrays against scalars: tests/laws/test_binned_profiles.py",
    "numerics/inverse_kernels": "both ends were evaluated: tests/curves/test_columns.py",
    "numerics/tables": "tests/numerics/test_kernels.py",
    "rigorous/gaussian": "enclosures: tests/rigorous/test_laws.py, tests/records/test_certificate.py",
    "rigorous/grids": "any grid is sound: tests/records/test_certified_runs.py",
    "rigorous/integral": "enclosures: tests/records/test_certificate.py",
    "training/classifier": "the command that trains: tests/cli/test_train.py",
    "training/settings": "the options of the command that trains: tests/cli/test_train.py",
    "training/engine": "the call that wraps: tests/training/test_make_private.py",
    "training/taps": "the gradient of a record at every kind of layer: tests/training/test_layers.py",
    "training/trainer": "the Trainer of transformers: tests/integrations/test_transformers.py",
}
"""Modules, and folders of bounds, without a test file of their own, and where their law is."""
CLI = {
    "alignment": "tests/diagnostics/test_directions.py",
    "check": "tests/records/test_regression.py",
    "report": "tests/records/test_statement.py",
}
"""Files of the command line without a test file of their own, and where their law is."""


def module_names():
    """Every module as ``room/file``."""
    paths = (ROOT / "privproj").rglob("*.py")
    return sorted(str(p.relative_to(ROOT / "privproj").with_suffix("")) for p in paths if p.stem != "__init__")


def mirrored(name):
    """The test file of a module."""
    *rooms, file = name.split("/")
    file = rooms.pop() if rooms[0:1] == ["mechanisms"] and len(rooms) > 1 else file
    return (ROOT / "tests").joinpath(*rooms, f"test_{file}.py")


@pytest.mark.parametrize("name", module_names())
def test_every_module_has_its_test_file_or_a_reason(name):
    harness = name in {
        f"training/algorithms/{file}" for file in FILES.values()
    }  # tests/training/test_every_algorithm.py
    if not harness:
        assert mirrored(name).exists() != bool({name, name.rpartition("/")[0]} & set(ELSEWHERE))


def test_every_file_of_the_command_line_has_its_test_file_or_a_reason():
    files = {path.stem for path in (ROOT / "cli").glob("*.py")} - {"__init__"}
    own = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "cli").glob("test_*.py")}
    assert own <= files and set(CLI) == files - own


def test_the_reasons_are_about_modules():
    assert set(ELSEWHERE) <= {part for name in module_names() for part in (name, name.rpartition("/")[0])}


@pytest.mark.parametrize("reason", sorted({*ELSEWHERE.values(), *CLI.values()}))
def test_the_files_that_a_reason_names_exist(reason):
    for path in re.findall(r"tests/[\w/.]*\w", reason):
        assert (ROOT / path).exists()


def test_what_needs_an_extra_says_so_by_needs_alone_which_marks_it_for_ci():
    skips = re.compile(r"importorskip\((?!\"numba\")")
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "test_mirror.py"]
    assert not [path.name for path in files if skips.search(path.read_text())]
