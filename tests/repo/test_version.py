"""The version is defined once, and the wheel contains the whole package."""

import re
import tomllib
from pathlib import Path

from helpers import ROOT

import privproj


def test_wheel_includes_every_package():
    """``setup.py`` finds the folders that are packages."""
    folders = {path.parent for path in (ROOT / "privproj").rglob("*.py")}
    assert len(folders) > 20 and all((folder / "__init__.py").exists() for folder in folders)


def test_wheel_includes_every_data_file():
    (patterns,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"].values()
    paths = [path for folder in ("privproj", "cli") for path in (ROOT / folder).rglob("*.*") if path.is_file()]
    data = [path for path in paths if path.suffix != ".py" and path.parent.name != "__pycache__"]
    assert [path for path in data if not any(map(path.match, patterns))] == []


def test_version_is_defined_once():
    sources = [*(ROOT / "privproj").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    found = [path for path in sources if re.search(r'version.* = "\d', path.read_text())]
    assert [p.relative_to(ROOT) for p in found] == [Path("privproj/version.py")]
    assert privproj.__version__ in (ROOT / "CHANGELOG.md").read_text()
