"""Certificates: the floating-point answer lies above its enclosure, and a file proves itself or fails."""

import json
import math
import random
import re
import sys
from dataclasses import replace
from decimal import Decimal

import mpmath as mp
import pytest
from helpers import ROOT, needs
from hypothesis import given, settings
from hypothesis import strategies as st
from privproj_cli.main import exit_code

import privproj
from privproj import reference
from privproj.contrib.certify import certificate
from privproj.contrib.certify.ball_profiles import ball_entry
from privproj.errors import ConvergenceError
from privproj.io import files
from privproj.mechanisms.registry import bound_names, find_bound, mechanism_named, registry

needs("flint")
sys.path.append(str(ROOT / "benchmarks"))

import certified as benchmark  # noqa: E402

SETTINGS = {
    "gaussian.analytic": {"noise_multiplier": 0.8},
    "m2.gaussian": {"dim": 64, "rank": 8, "noise_multiplier": 3.0},
    "m2.beta-tail": {"dim": 2048, "rank": 16, "change_rank": 10, "noise_multiplier": 0.7787},
    "m2.beta-tail-sharp": {"dim": 300, "rank": 1, "change_rank": 3, "noise_multiplier": 0.2},
    "m2.exact-rank1": {"dim": 64, "rank": 63, "noise_multiplier": 1.0},
    "m2.rank-free": {"dim": 2048, "rank": 16, "noise_multiplier": 0.5},
    "wishart.exact": {"dim": 20, "rank": 4, "misalignment": 1e-3},
    "sketch.exact-rank1": {"rank": 16, "gamma": 40.0},
    "sketch-public.exact-rank1": {"rank": 4, "noise_multiplier": 1.0},
    "sketch-public.rank-free": {"rank": 16, "noise_multiplier": 2.0},
    "jl-clip.exact": {"probes": 12, "noise_multiplier": 2.0},
    "laplace.exact": {"noise_multiplier": 0.2},
}
SETTINGS = {name: setting for name, setting in SETTINGS.items() if tuple(name.split(".")) in bound_names()}


def answered(name, epsilon=1.0):
    return privproj.evaluate(f"{name}.delta", epsilon=epsilon, **SETTINGS[name])


def test_every_certifiable_bound_has_setting():
    assert set(SETTINGS) == set(certificate.provable_names())


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 4.0])
def test_enclosure_holds_value_of_independent_code(name, epsilon):
    found = answered(name, epsilon)
    if found.outcome != "ok":
        assert (name, epsilon) == ("m2.beta-tail", 0.0)
        return
    proof = certificate.certify(found)
    with mp.workdps(40):
        value = reference.value(f"{name}.delta", 30, epsilon=epsilon, **SETTINGS[name])
        lower, upper = mp.mpf(proof.lower), mp.mpf(proof.upper)
        assert lower * (1 - mp.mpf("1e-13")) <= value <= upper * (1 + mp.mpf("1e-25"))
        # A bound with a free parameter is written a little wider.
        chosen = name.endswith(("rank-free", "beta-tail", "beta-tail-sharp"))
        assert upper - lower <= upper * mp.mpf("1e-12" if chosen else "1e-18")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(benchmark.DRAWS))
def test_no_answer_lies_below_its_enclosure(seed, draw):
    found = benchmark.query(random.Random(seed), draw)
    if found is not None and found.outcome == "ok":
        certificate.certify(found)


@pytest.mark.slow
def test_thousands_of_random_settings():
    rows = benchmark.measured(5000, 11)
    wide = rows.pop("enclosure too wide", [])
    rows.pop("nothing to certify")
    assert sum(map(len, rows.values())) > 4000 and len(wide) < 50
    assert all(row[0] for found in rows.values() for row in found)


def test_certify_rejects_result_on_the_unsafe_side():
    found = answered("m2.rank-free")
    assert found.delta is not None
    with pytest.raises(ConvergenceError, match="unsafe side"):
        certificate.certify(replace(found, delta=found.delta * (1 - 1e-9)))


@pytest.mark.parametrize("power", [-1000.0, -320.0])
@pytest.mark.parametrize("name", ["gaussian.analytic", "m2.rank-free", "sketch.exact-rank1"])
def test_deltas_far_below_double_precision(name, power):
    found = privproj.evaluate(f"{name}.epsilon", log10_delta=power, **SETTINGS[name])
    proof = certificate.certify(found)
    with mp.workdps(40):
        assert 0 < 1 - mp.mpf(proof.upper) / mp.mpf(10) ** power < 1e-8
    assert certificate.verify(proof).holds


def test_delta_zero_is_certified():
    proof = certificate.certify(privproj.delta(privproj.Laplace(noise_multiplier=1.5), epsilon=1.0))
    assert proof.upper == "0" and proof.target["log10_delta"] == -1e6
    assert certificate.verify(proof).holds


def test_certify_accepts_log10_delta():
    release = privproj.M2(dim=2048, rank=16, noise_multiplier=0.5)
    same = privproj.epsilon(release, log10_delta=-5.0), privproj.epsilon(release, delta=1e-5)
    assert same[0].value == pytest.approx(same[1].value, rel=1e-12, abs=0)
    for given_ in ({}, {"delta": 1e-5, "log10_delta": -5.0}, {"log10_delta": 0.0}, {"log10_delta": float("nan")}):
        with pytest.raises(privproj.InvalidParameterError):
            privproj.epsilon(release, **given_)


def saved(tmp_path, *arguments):
    path = tmp_path / "proof.json"
    assert exit_code(["certify", *arguments, "-o", str(path)]) == 0
    return path


def kept(path, content):
    path.write_text(json.dumps(content))
    return path


QUERY = ("epsilon", "m2", "--dim", "2048", "--rank", "16", "--noise-multiplier", "0.5", "--delta", "1e-5")


def test_saved_certificate_is_checked_by_another_command(tmp_path, capsys):
    path = saved(tmp_path, *QUERY)
    assert "certified:" in capsys.readouterr().out
    assert exit_code(["verify", str(path)]) == 0
    assert "holds" in capsys.readouterr().out


M2 = {"mechanism": "m2", "noise_multiplier": 0.5, "dim": 2048, "rank": 16, "clipping": "joint", "bound": "rank-free"}
RUN = {"steps": 1, "sampling_rate": 1.0, "relation": "add-remove"}


def requested(**changes):
    """The question of the certificate with some of it changed; None takes a key away."""
    return {"phase": [{key: value for key, value in {**M2, **RUN, **changes}.items() if value is not None}]}


def a_little_less(upper):
    """Tighter by 1e-12 than what was proved; the ends of a bound with a tangent are spread by less."""
    return str(Decimal(upper) * (1 - Decimal("1e-12")))


@pytest.mark.full
@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("upper", "9e-6", 1),
        ("lower", "9.9999999999999e-6", 1),
        ("epsilon", 0.7, 1),
        ("target", {"delta": 9e-6}, 1),
        ("target", {}, 2),
        ("target", {"delta": 1e-5, "log10_delta": -5.0}, 2),
        ("target", {"delta": 1.0}, 2),
        ("lower", "0.1", 1),
        ("upper", a_little_less, 1),
        ("side", "exact", 2),
        ("source", "somewhere", 2),
        ("requirements", [], 2),
        ("requirements", ["anything"], 2),
        ("bound_version", 99, 2),
        ("question", None, 2),
        ("question", {}, 2),
        ("bits", 100, 2),
        ("arithmetic", "by hand", 2),
        ("epsilon", 1, 1),
        ("status", "conditional", 2),
        ("data_assumptions", ["anything"], 2),
        ("question", requested(rank=17), 1),
        ("question", requested(rank=True), 2),
        ("question", requested(rank="16"), 2),
        ("question", requested(rank=16.5), 2),
        ("question", requested(rank=None), 2),
        ("question", requested(fixed_projection="false"), 2),
        ("question", requested(dim=2049), 1),
        ("question", requested(noise=0.5), 2),
        ("question", requested(mechanism="nothing"), 2),
        ("question", {"phase": [[]]}, 2),
        ("grid", {"tangent": 1.0}, 2),
        ("question", {"phase": []}, 2),
        ("question", requested(steps=2.5), 2),
        ("question", {**requested(), "discretization": "none"}, 2),
        ("question", requested(steps=7), 1),
        ("question", requested(group_size=-5), 2),
        ("question", requested(group_size=4), 3),
        ("question", requested(relation="none"), 2),
        ("question", requested(noise_multiplier=0.49), 1),
        ("question", requested(sampling_rate=0.5), 2),
        ("question", requested(batches=3), 2),
        ("extra", 1, 2),
        ("question", requested(bound="mixture-rdp"), 3),
        ("upper", "nan", 2),
        ("schema", 99, 2),
        ("epsilon", "one", 2),
    ],
)
def test_certificate_that_was_changed_does_not_pass(proof_text, tmp_path, capsys, key, value, code):
    content = json.loads(proof_text)
    content["certificate"][key] = value(content["certificate"][key]) if callable(value) else value
    assert exit_code(["verify", str(kept(tmp_path / "proof.json", content))]) == code
    output = capsys.readouterr()
    assert (output.err.count("\n") == 1) == (code != 1) and "Traceback" not in output.err


@pytest.mark.parametrize("name", ["gaussian.analytic", "m2.beta-tail-sharp", "sketch.exact-rank1"])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_certificate_agrees_under_another_relation(name, relation):
    """An edited relation passes only if privproj proves this delta under that relation."""
    own = certificate.certify(answered(name))
    (phase,) = own.question["phase"]
    edited = replace(own, question={"phase": [{**phase, "relation": relation}]})
    try:
        found = privproj.evaluate(f"{name}.delta", epsilon=1.0, relation=relation, **SETTINGS[name])
    except privproj.UnsupportedError:
        with pytest.raises(privproj.UnsupportedError):
            certificate.verify(edited)
        return
    proved = certificate.verify(certificate.certify(found))
    assert proved.holds
    true = abs(found.log10_delta - math.log10(float(own.upper))) < 1e-9
    try:
        verdict = certificate.verify(edited)
    except privproj.PrivprojError:
        assert not true
        return
    assert verdict.holds == true
    for sentence in ("status", "data_assumptions", "requirements", "side", "source", "run"):
        assert getattr(verdict.result, sentence) == getattr(found, sentence)


@pytest.mark.parametrize(
    "change",
    [lambda text: text.replace('"steps": 1,', '"steps": 1, "steps": 1,'), lambda text: text[:-4],
     lambda text: text.replace("0.5,", "0.50000000000000001,"), lambda text: text.replace("0.5,", "NaN,"),
     lambda text: text.replace("0.5,", "1e400,"), lambda text: text.replace("0.5,", "9" * 5000 + ","),
     lambda text: text.replace("0.5,", "[" * 100_000 + ","), lambda text: text.replace("joint", "\\ud800"),
     lambda text: text.replace("joint", "joint\\n"), lambda text: text + "{}", lambda text: "\ufeff" + text,
     lambda text: text.replace('{', '{"more": 1, ', 1)],
)  # fmt: skip
def test_ambiguous_certificates_are_rejected(proof_text, tmp_path, change, capsys):
    path = tmp_path / "proof.json"
    path.write_text(change(proof_text))
    assert path.read_text() != proof_text and exit_code(["verify", str(path)]) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and "Traceback" not in output.err and not output.out


@pytest.mark.parametrize("data", [b"", b"\xff\xfe{\x00}\x00", b"\x80", b" " * (1 << 21)])
def test_undecodable_bytes_are_rejected(tmp_path, data):
    path = tmp_path / "proof.json"
    path.write_bytes(data)
    assert exit_code(["verify", str(path)]) == 2 == exit_code(["verify", str(tmp_path)])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"steps": 1', '"steps": 1, "planned": true'),
        ('"steps": 1', '"steps": 1, "name": "proved for ever"'),
        ('"steps": 1', '"steps": 1.0'),
        ('"bound": "rank-free", ', ""),
        ('"noise_multiplier"', '"noise-multiplier"'),
    ],
)
def test_certificate_query_must_have_canonical_form(proof_text, tmp_path, capsys, old, new):
    """It may read as the same question: nothing may be added to it, left out of it or said otherwise."""
    assert old in proof_text
    (tmp_path / "proof.json").write_text(proof_text.replace(old, new))
    assert exit_code(["verify", str(tmp_path / "proof.json")]) == 2
    assert "question" in capsys.readouterr().err


@pytest.fixture(scope="module")
def proof_text():
    """A certificate of one release of M2."""
    found = privproj.epsilon(privproj.M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)
    return json.dumps(certificate.certify(found).record)


def test_order_of_keys_and_spelling_of_numbers_do_not_matter(proof_text, tmp_path, capsys):
    content = json.loads(proof_text)["certificate"]
    turned = {**content, "question": {"phase": [dict(reversed(content["question"]["phase"][0].items()))]}}
    text = json.dumps({"certificate": dict(reversed(turned.items()))}, indent=5).replace("1e-05", "0.000010")
    (tmp_path / "proof.json").write_text(text)
    assert text != proof_text and exit_code(["verify", str(tmp_path / "proof.json")]) == 0
    output = capsys.readouterr().out
    for sentence in ("add-remove", "group size 1", "one release on the whole dataset", "rank-free", "proved", "m2 ("):
        assert sentence in output


EDITS = [
    None, True, -5, 0, 2, 1.0, 0.5, 1e300, 10**18, "", "replace", "zero-out", "exact", "proved", "1e-5", "0", "0.9",
    "NaN", "1_0", "1e999999999", "analytic", [], {}, ["x"], {"delta": 0.5}, {"delta": 0.5, "log10_delta": -1.0}, 256,
]  # fmt: skip

CHEAP = ["gaussian.analytic", "m2.gaussian", "sketch.exact-rank1"]


def with_an_edit(draw, content):
    """The content of a certificate with one field, or one part of one, replaced, dropped, added or nudged."""
    content = json.loads(json.dumps(content))
    table = content["certificate"]
    name = draw.choice(sorted(table))
    if name == "question" and draw.random() < 0.8:
        (table,) = table[name]["phase"]
        name = draw.choice(sorted(table))
    elif isinstance(table[name], dict) and table[name] and draw.random() < 0.7:
        table = table[name]
        name = draw.choice(sorted(table))
    if name in ("lower", "upper") and draw.random() < 0.7:
        with mp.workdps(40):
            table[name] = mp.nstr(
                mp.mpf(table[name]) * (1 + draw.choice([-1, 1]) * mp.mpf(10) ** -draw.randint(1, 22)), 40
            )
    elif type(table[name]) in (int, float) and draw.random() < 0.6:
        table[name] *= draw.choice([0.5, 2, 1 + 1e-15, 1 - 1e-15, -1])
    else:
        action = draw.randrange(4)
        if action == 0:
            del table[name]
        elif action == 1:
            table[draw.choice(["steps", "delta", "log10_delta", "tau", "split", "dim", "x"])] = draw.choice(EDITS)
        else:
            table[name] = draw.choice(EDITS)
    return content


def states_the_truth(content, output):
    """By mpmath, delta lies where it is claimed; what is printed of the question is what the accountant says."""
    claim = content["certificate"]
    (phase,) = claim["question"]["phase"]
    requested = {key: value for key, value in phase.items() if key not in ("mechanism", "bound", "clipping")}
    name = f"{phase['mechanism']}.{phase.get('bound') or find_bound(mechanism_named(phase['mechanism']), None).name}"
    found = privproj.evaluate(f"{name}.delta", epsilon=claim["epsilon"], **requested)
    for key in ("mechanism", "run", "bound", "bound_version", "side", "status", "data_assumptions", "source"):
        assert output["result"][key] == found.as_dict()[key]
    options = ("sampling_rate", "sampling", "relation", "public_size", "group_size")
    requested = {key: value for key, value in requested.items() if key not in options and (key, value) != ("steps", 1)}
    with mp.workdps(40):
        value = reference.value(f"{name}.delta", 25, epsilon=claim["epsilon"], **requested)
        assert mp.mpf(claim["lower"]) * (1 - mp.mpf("1e-24")) <= value <= mp.mpf(claim["upper"]) * (1 + mp.mpf("1e-24"))
        assert mp.mpf(claim["upper"]) <= claim["target"]["delta"]


@pytest.mark.parametrize("name", CHEAP)
def test_no_edited_certificate_passes_unless_it_states_truth(name, tmp_path, capsys):
    draw, path = random.Random(name), tmp_path / "proof.json"
    content = certificate.certify(answered(name)).record
    codes = []
    for _ in range(40):
        changed = with_an_edit(draw, content)
        path.write_text(json.dumps(changed))
        codes.append(exit_code(["verify", str(path), "--json"]))
        output = capsys.readouterr()
        assert (output.err.count("\n") == 1) == (codes[-1] in (2, 3, 5)) and "report" not in output.err
        if codes[-1] == 0 and not files.json_equal(changed, content):
            states_the_truth(changed, json.loads(output.out))
    assert codes.count(2) > 15 and codes.count(1) > 2


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"certificate": {}}', '{"certificate": 3}', "\x00"])
def test_verify_names_files_that_are_not_certificates(tmp_path, text):
    path = tmp_path / "proof.json"
    path.write_text(text)
    assert exit_code(["verify", str(path)]) == 2
    assert exit_code(["verify", str(tmp_path / "missing.json")]) == 2


CAP = ("--max-batch-size", "30", "--dataset-size", "100")
TWO_SHAPES = ("--layer", "64x8x2", "--layer", "64x4")


@pytest.mark.parametrize(
    "arguments",
    [
        (*QUERY, "--group-size", "2"),
        (*QUERY, "--sampling-rate", ".1", "--steps", "1", *CAP),
        ("epsilon", "m2", *TWO_SHAPES, "--noise-multiplier", "1", "--delta", "1e-5"),
        ("epsilon", "m1", "--dim", "100", "--rank", "16", "--noise-multiplier", "3", "--delta", "1e-5"),
    ],
)
def test_certify_rejects_uncertifiable_results(arguments, capsys):
    assert exit_code(["certify", *arguments]) == 3
    output = capsys.readouterr().err
    assert "a certificate" in output or "cannot be certified" in output


def test_shuffled_epoch_is_certified_as_one_release(tmp_path, capsys):
    path = str(tmp_path / "proof.json")
    shuffled = "epsilon gaussian --noise-multiplier 5 --delta 1e-5 --sampling shuffle --batches 9"
    assert exit_code(["certify", *shuffled.split(), "-o", path]) == 0
    assert "(upper bound, delta = " in capsys.readouterr().out
    assert exit_code(["verify", path]) == 0
    assert "each epoch counts as one release" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("schema", "remedy"), [(5, "Certify again"), (99, "Update privproj"), ("4", "Certify again")])
def test_certificate_of_another_schema_error_has_remedy(proof_text, tmp_path, capsys, schema, remedy):
    content = json.loads(proof_text)
    content["certificate"]["schema"] = schema
    assert exit_code(["verify", str(kept(tmp_path / "proof.json", content))]) == 2
    output = capsys.readouterr().err
    assert f"got {schema!r}" in output and remedy in output


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "flint", None)
    assert exit_code(["certify", *QUERY]) == 2
    assert "[certify]" in capsys.readouterr().err


def test_json_carries_proof(capsys):
    assert exit_code(["certify", *QUERY, "--json"]) == 0
    proof = json.loads(capsys.readouterr().out)["numerics"]["certified"]
    assert 0.0 < float(proof["lower"]) <= float(proof["upper"]) <= 1e-5


def test_certificate_with_trailing_text_is_rejected(proof_text, tmp_path, capsys):
    """What is not read is not checked."""
    path = tmp_path / "proof.json"
    path.write_text(proof_text + " " * files.LARGEST_FILE + "epsilon is 0.001")
    assert exit_code(["verify", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_certify_refuses_record_in_several_batches():
    run = {"sampling": "balls-in-bins", "batches": 6, "batches_per_record": 2}
    result = privproj.epsilon(privproj.Gaussian(noise_multiplier=2.0), delta=1e-5, **run)
    with pytest.raises(privproj.UnsupportedError, match="Omit batches_per_record"):
        certificate.certify(result)


def test_certify_refuses_risk():
    with pytest.raises(privproj.UnsupportedError, match="an attack risk cannot be certified"):
        certificate.certify(privproj.sigma(privproj.Gaussian(), advantage=0.1))


def test_certificates_page_lists_certified_bounds():
    page = (ROOT / "docs" / "certificates.md").read_text()
    rows = re.findall(r"^\| bounds? of (.*) \| (.*) \|$", page, re.MULTILINE)
    for bound in registry():
        if not ball_entry(bound) or not bound.mechanism.__module__.startswith("privproj.mechanisms"):
            continue  # features have pages of their own
        name, of = f"`{bound.name}`", f"`{bound.mechanism.name}`"
        assert any(of in mechanisms and name in bounds for mechanisms, bounds in rows), bound
