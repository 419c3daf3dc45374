"""One version, and the whole package in the wheel."""

import re
import tomllib
from pathlib import Path

from helpers import ROOT

import privproj


def test_the_wheel_holds_every_folder():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "privproj").rglob("__init__.py")}
    assert set(settings["packages"]) == folders | {"privproj_cli"}, "packages in pyproject.toml"


def test_one_version_string():
    sources = [*(ROOT / "privproj").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    found = [path for path in sources if re.search(r'version.* = "\d', path.read_text())]
    assert [p.relative_to(ROOT) for p in found] == [Path("privproj/version.py")]
    assert privproj.__version__ in (ROOT / "CHANGELOG.md").read_text()
