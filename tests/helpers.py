"""Provide helpers that several folders of tests share: extras, a mechanism for every bound, example runs."""

import ast
import importlib
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

import privproj
from privproj import M1, M2, Gaussian, Laplace, PublicSketch
from privproj.mechanisms import bound as bound_module
from privproj.mechanisms.registry import find_bound, registry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXTRA = "needs an extra: "

# a text that would overwrite the line before it and imitate a line of the output
FORGED = "a\x1b[1A\x1b[2K\nok   b: epsilon = 0.1 (proved)\r\u2028\u202e\x7f\x9b"


@cache
def parsed(path):
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def needs(*names):
    """Return the first of these modules, or skip the test (or file) if one of them is not installed."""
    try:
        modules = [importlib.import_module(name) for name in names]
    except ImportError as error:
        place = Path(sys._getframe(1).f_code.co_filename).name
        pytest.skip(f"{EXTRA}{error.name} ({place})", allow_module_level=True)
    return modules[0] if modules else None


# Texts in a page or command, and the modules of extras that they need.
TEXTS = {
    "privproj certify": ["flint"],
    "contrib.certify": ["flint"],
    "import torch": ["torch", "opacus"],
    "privproj train": ["torch", "opacus", "sklearn"],
    "privproj audit m": ["torch", "opacus", "sklearn"],
    "privproj audit l": ["torch", "opacus"],
    "privproj audit o": ["torch", "opacus"],
    "--plot": ["matplotlib"],
}


def extras_of(text):
    """Return the modules of extras that a command, a program or a page needs."""
    return [name for phrase, names in TEXTS.items() if phrase in text for name in names]


def feature_rows(name):
    """Return the rows that optional features add to a table of tests: a dict from ``tests/contrib/*/rows.py``."""
    files = sorted((ROOT / "tests" / "contrib").glob("*/rows.py"))
    modules = [importlib.import_module(f"contrib.{path.parent.name}.rows") for path in files]
    return {key: value for module in modules for key, value in getattr(module, name, {}).items()}


def full_if(values, costly, mark=pytest.mark.full):
    """Return values of a test parameter, of which the expensive ones are marked ``full``."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else [value]), marks=[mark] if costly(value) else [])
        for value in values
    ]


def slow_if(values, costly):
    """Return values of a test parameter, of which the expensive ones are marked ``slow``."""
    return full_if(values, costly, mark=pytest.mark.slow)


GUARANTEES = [bound for bound in registry() if bound.status in bound_module.GUARANTEES]
# Bounds that take seconds for some queries.
SECONDS = {"column", "column-exact", "early", "early-exact-tail", "good-event", "good-event-q", "mixture-rdp"}


def mechanism_for(bound, z=1.0, dim=200, rank=12, k=2):
    """Return a mechanism for a bound; without added noise, ``z`` scales its source of randomness."""
    if bound.mechanism is M1:
        unit = {"columns": 1, "misalignment": 0.02} if bound.name == "secret-projection" else {}
        parts = {"span_dim": 0 if bound.name == "residual" else 3, "residual_misalignment": 1e-3 / z**2}
        return M1(dim=dim, rank=10 * rank, noise_multiplier=10.0 * z, **(unit or parts))
    examples = {
        "m2": {"dim": dim, "rank": rank, "change_rank": k, "noise_multiplier": z},
        "laplace": {"noise_multiplier": 0.05 * z},
        "wishart": {"dim": dim, "rank": rank, "misalignment": 1e-3 / z**2},
        "sketch": {"rank": rank, "gamma": 20.0 * z, "eigenvalues": 3, "step_smoothness": 1e-3},
        "sketch-public": {"rank": rank, "noise_multiplier": z},
        "mixing": {"rank": rank, "gamma": 8.0 * z, "eigen_noise": 1.5 * z},
    }
    if bound.mechanism.name in examples:
        return bound.mechanism(**examples[bound.mechanism.name])
    example = {name: float(value) for name, value in (pair.split("=") for pair in bound.mechanism.example.split())}
    return bound.mechanism(**{**example, **({"noise_multiplier": z} if "noise_multiplier" in example else {})})


def ids(bound):
    return f"{bound.mechanism.name}.{bound.name}"


def rank_one(eps, distribution):
    """Return ``ln E[h_eps(X)]``."""
    return distribution.expected_profile(eps)


def gaussian(z):
    return find_bound(Gaussian, "analytic").representation(Gaussian(noise_multiplier=z))


RUN = {"steps": 2000, "sampling_rate": 0.01}


def m2(z, **more):
    return M2(dim=2048, rank=16, noise_multiplier=z, **more)


def eps_of(mechanism, bound=None, delta=1e-5, **run):
    return privproj.epsilon(mechanism, delta=delta, bound=bound, **{**RUN, **run}).value


M2_PHASE = {"mechanism": "m2", "dim": 2048, "rank": 16, "noise_multiplier": 0.2, "sampling_rate": 0.01, "steps": 300}

GAUSSIAN_PHASE = {"mechanism": "gaussian", "noise_multiplier": 2, "sampling_rate": 0.01, "steps": 200}

RUNS = {
    "gaussian": (Gaussian(noise_multiplier=1.1), {"steps": 40, "sampling_rate": 0.03}),
    "gaussian, fixed": (Gaussian(noise_multiplier=1.1), {"steps": 300, "sampling_rate": 0.03, "sampling": "fixed"}),
    "laplace": (Laplace(noise_multiplier=6.4), {"steps": 20}),
    "laplace, sampled once": (Laplace(noise_multiplier=1.36), {"sampling_rate": 0.4}),
    "m2": (M2(dim=512, rank=8, noise_multiplier=0.3), {"steps": 200, "sampling_rate": 0.01}),
    "m2 gaussian": (M2(dim=59, rank=55, noise_multiplier=1.0), {"steps": 50, "sampling_rate": 0.05}),
    "sketch-public": (PublicSketch(rank=2, noise_multiplier=2.534484416553443), {"steps": 300, "sampling_rate": 0.01}),
}

settings_of_m2 = st.tuples(
    st.integers(2, 4000),
    st.floats(0, 1),
    st.floats(-1, 1.2).map(lambda x: 10.0**x),
    st.floats(-2.5, 1.2).map(lambda x: 10.0**x),
).map(lambda t: (t[0], 1 + round(t[1] ** 3 * (t[0] - 2)), t[2], t[3]))
