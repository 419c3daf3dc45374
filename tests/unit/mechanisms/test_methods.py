"""Names of published methods lead to the mechanism that accounts for them, in errors, bounds and the documentation."""

import pytest
from helpers import ROOT

from privproj import InvalidParameterError, evaluate
from privproj.mechanisms.methods import METHODS, find_method
from privproj.mechanisms.registry import mechanism_names

NAMES = [(method, name) for method in METHODS for name in (method.name, *method.also)]


@pytest.mark.parametrize(("method", "name"), NAMES, ids=lambda x: x if isinstance(x, str) else "")
def test_find_method_accepts_every_spelling(method, name, run):
    assert find_method(name.upper().replace("-", "_")) is method
    assert set(method.mechanisms) <= set(mechanism_names())
    spelt = name.lower().replace(" ", "-")
    code, out, err = run(f"epsilon {spelt} --noise-multiplier 1 --delta 1e-5")
    assert (code, out) == (3 if method.refuted else 2, "") and err.count("\n") == 1
    assert all(mechanism in err for mechanism in method.mechanisms)
    code, out, _ = run(f"bounds {spelt}")
    assert code == 0 and all(f"\n{mechanism} " in out for mechanism in method.mechanisms)


@pytest.mark.parametrize("name", ["lora", "LoRA", "peft"])
def test_lora_alone_is_not_mechanism(name, run):
    code, out, err = run(f"epsilon {name} --rank 16")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "`privproj explain LoRA`" in err
    assert "depends on" in err and "gaussian" not in err


def test_evaluate_names_mechanism_of_method():
    with pytest.raises(InvalidParameterError, match="for DP-GRAPE use gaussian"):
        evaluate("dp-grape.analytic.epsilon", noise_multiplier=1, delta=1e-5)
    with pytest.raises(InvalidParameterError, match="did you mean 'm2'"):
        evaluate("mm2.rank-free.epsilon", delta=1e-5)


def test_method_names_are_unique_and_not_mechanisms():
    names = [find_method(name) for _, name in NAMES]
    assert names == [method for method, _ in NAMES]
    assert not set(mechanism_names()) & {name.lower() for _, name in NAMES}


def test_published_methods_page_has_methods_with_mechanism():
    page = (ROOT / "docs" / "published-methods.md").read_text()
    for method in METHODS:
        row = f"| {', '.join((method.name, *method.also))} |"
        assert (row in page) == bool(method.mechanisms)
        assert not method.mechanisms or f"| {method.source.replace('arXiv ', '')} |" in page
