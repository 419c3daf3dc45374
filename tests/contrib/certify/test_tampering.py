"""Tampered certificates: each is rejected or not proved, or its statement is still true."""

import json

import mpmath as mp
from helpers import needs
from unit.io.tampering import Document, edited, tampering_tests

import privproj
from privproj import reference
from privproj.schedule import from_data

needs("flint")

from privproj.contrib.certify import certify  # noqa: E402
from privproj.contrib.certify.certificate import is_run  # noqa: E402


def parameters_of(table):
    return {name: value for name, value in table.items() if name not in ("name", "mechanism", "clipping", "bound")}


def certificate_of(name, epsilon=1.0, **parameters):
    """Return a function that makes a certificate of one release, or of a run."""

    def make():
        return json.dumps(certify(privproj.evaluate(f"{name}.delta", epsilon=epsilon, **parameters)).record)

    return make


def certificate_of_phases(*phases, epsilon=1.0):
    """Return a function that makes a certificate of a run file."""

    def make():
        return json.dumps(certify(from_data({"phase": [*phases]}).delta(epsilon=epsilon)).record)

    return make


def assess_certificate(text, output):
    """Its ends enclose delta, by mpmath or for a run by the composer; what is said is the accountant's."""
    claim = json.loads(text)["certificate"]
    phases = claim["question"]["phase"]
    schedule, phase = from_data({"phase": phases}), phases[0]
    found, of_run = schedule.delta(epsilon=claim["epsilon"]), is_run(schedule.phases)
    if len(phases) == 1:
        own = {**parameters_of(phase), **({"layers": phase["layer"]} if "layer" in phase else {})}
        found = privproj.evaluate(f"{phase['mechanism']}.{phase['bound']}.delta", epsilon=claim["epsilon"], **own)
    arguments, shown = found.as_dict(), output["result"]
    for key in ("bound", "bound_version", "status", "data_assumptions", "source", "run"):
        assert shown[key] == arguments[key]
    assert shown["side"] == ("upper bound" if of_run else arguments["side"]) and shown["epsilon"] == claim["epsilon"]
    with mp.workdps(40):
        lower, upper, target = mp.mpf(claim["lower"]), mp.mpf(claim["upper"]), claim["target"]
        assert upper <= (target["delta"] if "delta" in target else mp.mpf(10) ** target["log10_delta"])
        if of_run:
            assert upper >= (found.lower or 0.0) * (1 - 1e-9) and lower <= found.upper * (1 + 1e-9)
            return
        requested = {key: value for key, value in parameters_of(phase).items() if key not in OF_RUN}
        requested = {key: value for key, value in requested.items() if (key, value) != ("steps", 1)}
        value = reference.value(
            f"{phase['mechanism']}.{phase['bound']}.delta", 25, epsilon=claim["epsilon"], **requested
        )
        assert lower * (1 - mp.mpf("1e-24")) <= value <= upper * (1 + mp.mpf("1e-24"))


OF_RUN = ("sampling_rate", "sampling", "relation", "public_size", "group_size")
"""Keys of a run that the references take as they are by default."""


def forge(draw, text):
    """Return the certificate with an edit of its data."""
    return json.dumps(edited(draw, json.loads(text)), indent=draw.choice([None, 2]))


LIES = [(r'"upper": "[^"]*"', '"upper": "1e-19"'), (r'"lower": "[^"]*"', '"lower": "0.9999"')]
MAKERS = {
    "certificate of a Gaussian": (certificate_of("gaussian.analytic", noise_multiplier=0.8), 3),
    "certificate of a sketch": (certificate_of("sketch.exact-rank1", rank=16, gamma=40.0), 3),
    "certificate of M2": (certificate_of("m2.gaussian", dim=64, rank=8, noise_multiplier=3.0, clipping="joint"), 3),
    "certificate of a run": (certificate_of("laplace.exact", noise_multiplier=2.0, steps=3), 1),
    "certificate of two phases": (
        certificate_of_phases(
            {"mechanism": "laplace", "noise_multiplier": 2.0, "steps": 2},
            {"mechanism": "laplace", "noise_multiplier": 4.0, "steps": 3},
        ),
        2,
    ),
}
DOCUMENTS = {name: Document(make, assess_certificate, forge, LIES, cost) for name, (make, cost) in MAKERS.items()}

(
    test_accepted_forgeries_are_true,
    test_thousands_of_accepted_forgeries_are_true,
    test_assess_detects_false_statements,
) = tampering_tests(DOCUMENTS)
