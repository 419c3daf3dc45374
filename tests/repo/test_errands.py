"""Optional features can be deleted, and nothing else needs them."""

import os
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT


def copy_of_the_tree(folder):
    """All files that git knows, and the name by which the command line is installed."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in filter(lambda name: (ROOT / name).exists(), names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "privproj_cli").symlink_to(folder / "cli")


def delete_feature(folder, name):
    """Delete an optional feature: its package, its tests and its page."""
    shutil.rmtree(folder / "privproj" / "contrib" / name)
    shutil.rmtree(folder / "tests" / "contrib" / name)
    (folder / "docs" / f"{name.replace('_', '-')}.md").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jl_clip", "mixing"])
def test_a_feature_is_deleted_with_its_folders(tmp_path, name):
    if not (ROOT / ".git").exists():
        pytest.skip("git tells which files there are")
    copy_of_the_tree(tmp_path)
    delete_feature(tmp_path, name)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def run(*words):
        words = [sys.executable, *words]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    gone = run("-c", "from privproj_cli.main import main; main(['bounds', '" + name.replace("_", "-") + "'])")
    assert gone.returncode == 2 and "a bound" in gone.stderr
    rooms = [f"tests/unit/{room}" for room in ("mechanisms", "accounting", "cli")]
    done = run("-m", "pytest", "-q", "-n", "2", "-m", "not slow and not full and not extra", *rooms)
    assert done.returncode == 0, done.stdout[-3000:]
