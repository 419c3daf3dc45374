"""The picture of the README: its data, its description, its contrast, and that it is up to date."""

import importlib.util
import re
import xml.etree.ElementTree as ET

import pytest
from helpers import ROOT, needs

PICTURE = ROOT / "docs" / "gain.svg"
SVG = "{http://www.w3.org/2000/svg}"


def script():
    """``benchmarks/gain_picture.py`` as a module."""
    spec = importlib.util.spec_from_file_location("gain_picture", ROOT / "benchmarks" / "gain_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gain():
    return script()


@pytest.fixture(scope="module")
def columns(gain):
    return gain.table()


def test_gain_picture_m2_approaches_dp_sgd_with_rank(gain, columns):
    """M2 never beats DP-SGD at equal noise (a theorem); its published accounting stays above ours."""
    assert list(columns) == ["DP-SGD", "M2 as published", "M2 by privproj"]
    rows = list(zip(gain.RANKS, *columns.values(), strict=True))
    assert all(0.0 < plain * (1.0 - 1e-4) <= ours <= published for _, plain, published, ours in rows)
    assert len({plain for _, plain, _, _ in rows}) == 1
    for name in gain.CURVES:
        assert columns[name] == sorted(columns[name], reverse=True)
    assert rows[-1][3] < 1.001 * rows[-1][1]


def test_gain_picture_has_title_and_description(gain, columns):
    root = ET.parse(PICTURE).getroot()
    assert root.get("role") == "img"
    named = {part.get("id"): part.text for part in root if part.tag in (f"{SVG}title", f"{SVG}desc")}
    assert [named[name] for name in root.get("aria-labelledby").split()] == [gain.title(), gain.description(columns)]


def luminance(colour):
    """Relative luminance of ``#rrggbb``, as the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
def test_gain_picture_has_contrast_on_white_and_dark(page):
    colours = set(re.findall(r"#[0-9a-f]{6}\b", PICTURE.read_text()))
    assert len(colours) >= 4
    for colour in colours:
        low, high = sorted((luminance(colour), luminance(page)))
        assert (high + 0.05) / (low + 0.05) >= 3.0, colour


@pytest.mark.full
def test_gain_picture_matches_its_script(gain, columns):
    matplotlib = needs("matplotlib")
    drawn = gain.draw(columns)
    assert drawn == gain.draw(columns)
    if f"matplotlib=={matplotlib.__version__}\n" in (ROOT / "constraints.txt").read_text():
        assert drawn == PICTURE.read_text(), "run python benchmarks/gain_picture.py"
