"""Optional features: the core does not name one, and each can be deleted with its tests."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, parsed

FEATURES = sorted(path.parent.name for path in ROOT.glob("privproj/contrib/*/__init__.py"))
PAGES = {"audit": ["audits"], "certify": ["certificates", "certified"]}  # docs pages with other names than the feature
CORE = [
    path
    for folder in ("privproj", "cli", "tests")
    for path in sorted((ROOT / folder).rglob("*.py*"))
    if path.suffix in (".py", ".pyi") and "contrib" not in path.relative_to(ROOT).parts
    and path not in (ROOT / "privproj" / "plugins.py", Path(__file__))
]  # fmt: skip
ABOUT_LAYERS = ("tests/repo/", "tests/golden/")  # tests of the whole tree, which list packages
EVERYTHING = """
import importlib, pkgutil, sys, privproj, privproj_cli
class Missing:
    # Torch and packages that need it take seconds to import.
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "opacus", "transformers"):
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing())
gone = tuple("privproj.contrib." + name for name in sys.argv[1:])
for package in (privproj, privproj_cli):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            # The module adds something to a feature that is gone, and only that feature loads it.
            is_addition = module.name.startswith("privproj.contrib.") and (error.name or "").startswith(gone)
            is_named = is_addition and module.name in (
                open(importlib.import_module(module.name.rpartition(".")[0] + ".plugin").__file__).read()
            )
            if not is_named and (error.name or "").split(".")[0] in ("privproj", "privproj_cli"):
                raise
"""


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_does_not_name_contrib(path):
    if str(path.relative_to(ROOT)).startswith(ABOUT_LAYERS):
        pytest.skip("a test of the whole tree")
    for node in ast.walk(parsed(path)):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        for name in names:
            assert not re.search(r"privproj[./]contrib\b", name), f"line {node.lineno}: {name[:80]}"


def copy_tree(folder):
    """Copy all files that git tracks, and link the name under which the command line is installed."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in filter(lambda name: (ROOT / name).is_file(), names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "privproj_cli").symlink_to(folder / "cli")


def delete_features(folder, names):
    """Delete features, their tests and their docs pages, and import every module that is left."""
    for name in names:
        shutil.rmtree(folder / "privproj" / "contrib" / name)
        shutil.rmtree(folder / "tests" / "contrib" / name, ignore_errors=True)
        for page in PAGES.get(name, [name]):
            (folder / "docs" / f"{page}.md").unlink(missing_ok=True)
    run(folder, "-c", EVERYTHING, *names)


def run(folder, *arguments):
    """Run Python in the copy; a failure shows the end of its output."""
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture
def tree(tmp_path):
    """Return the folder of a copy of the tree."""
    if not (ROOT / ".git").exists():
        pytest.skip("git tells which files there are")
    copy_tree(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FEATURES)
def test_no_other_feature_imports_feature(name):
    others = (ROOT / folder / "contrib" for folder in ("privproj", "tests"))
    for path in (path for folder in others for path in folder.rglob("*.py*") if path.suffix in (".py", ".pyi")):
        plugin = path.with_name("plugin.py")
        # A module that adds something to this feature is named in a table, which only this feature reads.
        is_addition = plugin.exists() and f"contrib.{path.parent.name}.{path.stem}:" in plugin.read_text()
        if path.parent.name != name and not is_addition:
            for node in ast.walk(parsed(path)):
                module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                assert not re.match(rf"(privproj\.)?contrib\.{name}\b", module), f"{path} line {node.lineno}"


@pytest.mark.full
@pytest.mark.parametrize("name", FEATURES)
def test_feature_can_be_deleted(tree, name):
    """Every module that is left is imported, and what lists features lists the others."""
    delete_features(tree, [name])
    for command in ("--help", "bounds", "explain"):
        assert run(tree, "-m", "privproj", command)


@pytest.mark.full
def test_core_works_without_features(tree):
    delete_features(tree, FEATURES)
    shutil.rmtree(tree / "tests" / "contrib", ignore_errors=True)
    tests = [
        "repo/test_layers.py",
        "unit/cli/test_main.py",
        "unit/cli/test_verify.py",
        "unit/accounting/test_evaluate.py",
    ]
    run(tree, "-m", "pytest", "-q", "-n", "2", *(f"tests/{test}" for test in tests))
    assert "epsilon = 4.378" in run(
        tree, "-m", "privproj", "epsilon", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5"
    )
