"""Test values against an independent 40-digit implementation."""

import json
from pathlib import Path

import pytest
from helpers import ROOT

import privproj

COPY = Path(__file__).parent / "vectors.json"
ORIGINAL = ROOT.parent / "shared" / "reference" / "vectors.json"
BUILT = {"gaussian", "m1", "m2", "wishart", "sketch"}
VECTORS = [v for v in json.loads(COPY.read_text())["vectors"] if v["quantity"].split(".")[0] in BUILT]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["quantity"] + str(v["parameters"]))
def test_vectors_match_evaluate(vector):
    result = privproj.evaluate(vector["quantity"], **vector["parameters"])
    assert result.value == pytest.approx(float(vector["value"]), rel=1e-10, abs=0)
    assert result.value >= float(vector["value"]) * (1 - 1e-15)
    assert result.lower is None or result.lower <= float(vector["value"]) * (1 + 1e-15) or result.value == 1.0


def test_vectors_cover_every_mechanism():
    assert {v["quantity"].split(".")[0] for v in VECTORS} == BUILT


@pytest.mark.skipif(not ORIGINAL.exists(), reason="the original lies beside a developer's clone only")
def test_vectors_copy_is_unchanged():
    assert COPY.read_bytes() == ORIGINAL.read_bytes()
