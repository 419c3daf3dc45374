"""A mechanism can be deleted: its folder and the lines that list it."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT

LISTS = ("privproj/__init__.pyi", "privproj/mechanisms/__init__.pyi", "privproj/mechanisms/registry.py")
"""Files that list the mechanisms."""


TABLES = ("privproj/mechanisms/methods.toml", "cli/words.toml")
"""Files with an entry for each method and each word, of which those about the mechanism go."""


def copy_of_the_tree(folder):
    """All files that git knows, and the name by which the command line is installed."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in filter(lambda name: (ROOT / name).exists(), names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "privproj_cli").symlink_to(folder / "cli")


def delete_mechanism(folder, name, kind):
    """Delete a mechanism: its folder, its tests and references, its lines in lists, and what tables say of it."""
    shutil.rmtree(folder / "privproj" / "mechanisms" / name)
    for path in [*folder.glob(f"tests/unit/mechanisms/test_{name}*.py"), folder / "tests" / "reference" / f"{name}.py"]:
        path.unlink()
    word = rf"\b(?:{name}|{name.replace('_', '-')}|{kind})\b"
    for place in LISTS:
        path = folder / place
        whole = re.compile(rf"^[^\n]*{word}[^\n]*\n", re.MULTILINE)
        among_others = re.compile(rf', "?{word}"?(?=[,)\n])')
        path.write_text(whole.sub("", among_others.sub("", path.read_text())))
    for place in TABLES:
        # A word about several names it beside them.
        text = re.sub(rf"(?:,| and) {word}", "", (folder / place).read_text())
        entries = re.split(r"^(?=\[\[)", text, flags=re.MULTILINE)
        (folder / place).write_text("".join(entry for entry in entries if not re.search(word, entry)))


@pytest.mark.slow
def test_mechanism_can_be_deleted_with_its_folder(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("git tells which files there are")
    copy_of_the_tree(tmp_path)
    delete_mechanism(tmp_path, "jl_clip", "JLClip")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def run(*words):
        words = [sys.executable, *words]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    gone = run("-c", "from privproj_cli.main import main; main(['bounds', 'jl-clip'])")
    assert gone.returncode == 2 and "a bound" in gone.stderr
    rooms = [f"tests/{room}" for room in ("mechanisms", "accounting", "cli")]
    done = run("-m", "pytest", "-q", "-n", "2", "-m", "not slow and not full and not extra", *rooms)
    assert done.returncode == 0, done.stdout[-3000:]
