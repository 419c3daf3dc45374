"""Forged certificates, ledgers and statements: each is refused or fails, or what it says is still true.

A maker gives a document and a judge. The judge knows nothing of the code that verifies: it reads what an accepted
forgery says and computes it again, by mpmath or by the accountant, from the parameters that the forgery states.
"""

import json
import random
import re
from collections import Counter

import mpmath as mp
import pytest
import reference
from helpers import needs
from privproj_cli.main import exit_code
from privproj.contrib.statement.command import written
from unit.io.forgers import DIGITS, chained, edited, entries_of, scratched

import privproj
from privproj.assumptions import PUBLIC_SUBSPACE
from privproj.contrib.certify.certificate import is_run
from privproj.contrib.statement.statement import account_data, statement_from
from privproj.io.files import AS_FAR_AS_IT_GOES
from privproj.io.ledger import Account
from privproj.schedule import from_data

SLACK = 1e-6
"""Relative difference that the rounding of a printed number to four digits is allowed on another machine."""


ACCEPTED = ("holds", AS_FAR_AS_IT_GOES)
"""The verdicts that come with exit code 0."""


def parameters_of(table):
    return {name: value for name, value in table.items() if name not in ("name", "mechanism", "clipping", "bound")}


# --- makers and their judges ------------------------------------------------------------------------


def certificate_of(name, epsilon=1.0, **parameters):
    """A certificate of one release, or of a run."""

    def make():
        needs("flint")
        from privproj.contrib.certify import certify

        return json.dumps(certify(privproj.evaluate(f"{name}.delta", epsilon=epsilon, **parameters)).record)

    return make


def certificate_of_phases(*phases, epsilon=1.0):
    """A certificate of a run file."""

    def make():
        needs("flint")
        from privproj.contrib.certify import certify

        return json.dumps(certify(from_data({"phase": [*phases]}).delta(epsilon=epsilon)).record)

    return make


def judge_certificate(text, said):
    """Its ends enclose delta, by mpmath or for a run by the composer; what is said is the accountant's."""
    claim = json.loads(text)["certificate"]
    phases = claim["question"]["phase"]
    schedule, phase = from_data({"phase": phases}), phases[0]
    found, of_run = schedule.delta(epsilon=claim["epsilon"]), is_run(schedule.phases)
    if len(phases) == 1:
        own = {**parameters_of(phase), **({"layers": phase["layer"]} if "layer" in phase else {})}
        found = privproj.evaluate(f"{phase['mechanism']}.{phase['bound']}.delta", epsilon=claim["epsilon"], **own)
    words, shown = found.as_dict(), said["result"]
    for key in ("bound", "bound_version", "status", "promises", "source", "run"):
        assert shown[key] == words[key]
    assert shown["side"] == ("upper bound" if of_run else words["side"]) and shown["epsilon"] == claim["epsilon"]
    with mp.workdps(40):
        lower, upper, target = mp.mpf(claim["lower"]), mp.mpf(claim["upper"]), claim["target"]
        assert upper <= (target["delta"] if "delta" in target else mp.mpf(10) ** target["log10_delta"])
        if of_run:
            assert upper >= (found.lower or 0.0) * (1 - 1e-9) and lower <= found.upper * (1 + 1e-9)
            return
        asked = {key: value for key, value in parameters_of(phase).items() if key not in OF_RUN}
        asked = {key: value for key, value in asked.items() if (key, value) != ("steps", 1)}
        value = reference.value(f"{phase['mechanism']}.{phase['bound']}.delta", 25, epsilon=claim["epsilon"], **asked)
        assert lower * (1 - mp.mpf("1e-24")) <= value <= upper * (1 + mp.mpf("1e-24"))


OF_RUN = ("sampling_rate", "sampling", "relation", "public_size", "group_size")
"""Keys of a run that the references take as they are by default."""


GAUSSIAN = {"name": "dp-sgd", "mechanism": "gaussian", "noise_multiplier": 6.0, "bound": "analytic", "steps": 3}
WHOLE = {"sampling_rate": 1.0, "relation": "add-remove"}
PROJECTED = {"name": "m2", "mechanism": "m2", "noise_multiplier": 4.0, "dim": 64, "rank": 4, "clipping": "joint"}
TARGET = {"epsilon": 2.5, "delta": 1e-5}


def ledger_of(*phases):
    """A ledger with these phases, of which two steps were made each."""

    def make():
        entries = [{"ledger": "privproj", "version": 2}]
        for i, phase in enumerate(phases):
            entries += [{"phase": phase} | ({} if i else {"target": TARGET}), {"step": 1}, {"step": 2}]
        return chained(entries).decode()

    return make


def judge_ledger(text, said):
    """The epsilons of the verdict are no less than those of the releases that its lines count, nor is a target."""
    phases, made, targets = [], [], []
    whole, _, torn = text.rpartition("\n")
    for entry in entries_of(whole.encode())[1:]:
        if "phase" in entry:
            phases.append(entry["phase"])
            made.append(0)
            targets.append(entry.get("target") or (targets or [{}])[-1])
            assert not set(entry) - {"phase", "target"} and not set(entry.get("target", {})) - {"epsilon", "delta"}
        else:
            made[-1] += 1
            assert entry == {"step": made[-1]}
    if torn:  # what a crash leaves of a line counts as a release
        made[-1] += 1
    done = [{**phase, "steps": steps} for phase, steps in zip(phases, made, strict=True) if steps]
    plan = [{**phase, "steps": max(phase["steps"], steps)} for phase, steps in zip(phases, made, strict=True)]
    last = [*done[:-1], plan[-1]] if made[-1] else [*done, plan[-1]]
    assert said["steps"] == sum(made) and not any(
        steps > phase["steps"] for phase, steps in zip(phases, made, strict=True)
    )
    if done:
        assert said["epsilon"] >= epsilon_of(done, said["delta"]) * (1 - 1e-12)
    begun = [phase for phase, steps in zip(plan, made, strict=True) if steps or phase is plan[-1]]
    assert said["epsilon_of_plan"] >= epsilon_of(begun, said["delta"]) * (1 - 1e-12)
    if targets[-1].keys() == {"epsilon", "delta"}:
        assert targets[-1]["epsilon"] * (1 + SLACK) >= epsilon_of(last, targets[-1]["delta"]) * (1 - 1e-9)


def epsilon_of(phases, delta):
    """Epsilon of these phases; in mpmath where all are Gaussian on the whole data set, z^-2 = sum of T/z^2."""
    plain = [
        p["mechanism"] == "gaussian" and p["sampling_rate"] == 1.0 and p["relation"] == "add-remove" for p in phases
    ]
    alone = not any(key in phase for phase in phases for key in ("group_size", "sampling", "batches"))
    if all(plain) and alone:
        joint = sum(phase["steps"] / mp.mpf(phase["noise_multiplier"]) ** 2 for phase in phases) ** -0.5
        return float(reference.value("gaussian.analytic.epsilon", 20, delta=delta, noise_multiplier=joint))
    return from_data({"phase": phases}).epsilon(delta=delta).value


def statement_of(*words):
    """A privacy statement."""

    def make(tmp_path, capsys):
        assert exit_code(["report", *words]) == 0
        return capsys.readouterr().out

    return make


def statement_of_training(tmp_path, capsys):
    """The statement of a training run of one phase."""
    account = Account((({**GAUSSIAN, **WHOLE, "public_size": True}, 2),))
    return written(statement_from(account_data(account), 1e-5, "markdown")) + "\n"


def judge_statement(text, said):
    """What it says of epsilon, of the unit and of attacks is true for the parameters at its end."""
    found = json.loads(next(line for line in text.split("\n") if line.startswith('{"privproj"')))
    delta = found["delta"]
    phases = found["run"]["phase"]
    if "ledger" in found:
        pairs = list(zip(phases, found["ledger"]["made"], strict=True))
        made = [{**phase, "steps": steps} for phase, steps in pairs if steps]
        result = from_data({"phase": made}).epsilon(delta=delta)
        assert ("given seed" in text) == found["ledger"]["insecure"]
        assert all(words in text for words in found["ledger"]["notes"])
        assert (PUBLIC_SUBSPACE in text) == found["ledger"]["public_subspace"]
        assert ("planned steps" in text) == any(phase["steps"] != steps for phase, steps in pairs if steps)
    else:
        made, result = phases, from_data(found["run"]).epsilon(delta=delta)
    flat = " ".join(text.split())
    stated = re.findall(r"epsilon is at most ([^ ]+) at delta ([^ <]+)\.(?: |<)", flat)
    assert len(stated) == 1 and float(stated[0][1]) == delta
    assert result.value * (1 - SLACK) <= float(stated[0][0]) <= result.value * 1.002
    units = {
        "add-remove": "added to or removed from",
        "replace": "replaced by any other",
        "zero-out": "replaced by zero",
    }
    for relation, words in units.items():
        assert (words in flat) == (result.run["relation"] == relation)
    for phase in made:
        assert f"{'one' if phase['steps'] == 1 else phase['steps']} release" in flat
        for key in {"noise_multiplier", "dim", "rank"} & {*phase}:
            assert f"{key} {phase[key]}" in flat
    for promise in (*result.promises, *result.assumes):
        assert promise in flat
    attacks = re.findall(r"at most ([\d.]+) % of those inside .*? rate ([\d.]+) %", flat.replace("&nbsp;", " "))
    assert attacks or not result.usable
    for most, rate in attacks:  # no bound may be better than nothing
        assert float(rate) <= float(most) <= 100.0
    said = found.get("said", {})
    assert all(f"{name}: {words}" in flat.replace("&#x27;", "'") for name, words in said.items())
    assert all(re.fullmatch("[0-9a-f]{64}", said.get(name, "0" * 64)) for name in ("ledger", "checkpoint"))


UNITS = {"add-remove": "added to or removed from", "replace": "replaced by any other", "zero-out": "replaced by zero"}
Z = "--noise-multiplier"
MAKERS = {
    "certificate of a Gaussian": (certificate_of("gaussian.analytic", noise_multiplier=0.8), judge_certificate, 3),
    "certificate of a sketch": (certificate_of("sketch.exact-rank1", rank=16, gamma=40.0), judge_certificate, 3),
    "certificate of M2": (
        certificate_of("m2.gaussian", dim=64, rank=8, noise_multiplier=3.0, clipping="joint"), judge_certificate, 3
    ),
    "certificate of a run": (
        certificate_of("laplace.exact", noise_multiplier=2.0, steps=3), judge_certificate, 1
    ),
    "certificate of two phases": (
        certificate_of_phases(
            {"mechanism": "laplace", "noise_multiplier": 2.0, "steps": 2},
            {"mechanism": "laplace", "noise_multiplier": 4.0, "steps": 3},
        ),
        judge_certificate, 2,
    ),
    "ledger of one phase": (ledger_of({**GAUSSIAN, **WHOLE}), judge_ledger, 1),
    "ledger of two phases": (
        ledger_of({**GAUSSIAN, **WHOLE}, {**GAUSSIAN, "noise_multiplier": 9.0, "steps": 5, **WHOLE}), judge_ledger, 4
    ),
    "statement of a Gaussian": (statement_of("gaussian", Z, "2.0", "--delta", "1e-5"), judge_statement, 1),
    "statement in Markdown": (
        statement_of(
            "laplace", Z, "2.0", "--delta", "1e-5", "--style", "markdown", "--date", "2026-11-25", "--model", "net 1",
            "--ledger", __file__,
        ),
        judge_statement, 1,
    ),
    "statement of a training run": (statement_of_training, judge_statement, 1),
    "statement as a page": (
        statement_of("gaussian", Z, "3.0", "--steps", "2", "--delta", "1e-5", "--style", "html"), judge_statement, 2
    ),
}  # fmt: skip
"""Documents by name: how to make one, how to judge an accepted forgery of it, and how much slower than others it is."""
NAMES = [pytest.param(name, marks=pytest.mark.extra if name.startswith("certificate") else ()) for name in MAKERS]
"""The documents, of which certificates need an extra."""


def document(name, tmp_path, capsys):
    make = MAKERS[name][0]
    return make(tmp_path, capsys) if name.startswith("statement") else make()


def forged(draw, name, text):
    """The document with an edit of its data, its hashes computed again, or of its letters."""
    if draw.random() < 0.35:
        return scratched(draw, text)
    if name.startswith("certificate"):
        return json.dumps(edited(draw, json.loads(text)), indent=draw.choice([None, 2]))
    if name.startswith("ledger"):
        return chained(forged_entries(draw, entries_of(text.encode()))).decode()
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith('{"privproj"'))
    data = edited(draw, json.loads(lines[at]))
    lines[at] = json.dumps(data)
    if draw.random() < 0.3:
        lines[at] = re.sub(r"\d+(\.\d+)?(e-\d+)?", lambda found: draw.choice([found[0], *DIGITS]), lines[at], count=2)
    return "\n".join(lines)


def forged_entries(draw, entries):
    """The entries of a ledger with one line edited, moved, doubled or left out; the steps numbered again, or not."""
    action, i, j = draw.random(), draw.randrange(1, len(entries)), draw.randrange(1, len(entries))
    if action < 0.6:
        phases = [k for k, entry in enumerate(entries) if "phase" in entry]
        at = draw.choice([*phases, *phases, i])
        found = edited(draw, entries[at])
        entries[at] = found if isinstance(found, dict) else {"step": found}
    elif action < 0.75:
        entries[i], entries[j] = entries[j], entries[i]
    elif action < 0.9:
        entries.insert(j, dict(entries[i]))
    else:
        del entries[i]
    number = 0
    if draw.random() < 0.7:
        for entry in entries:
            number = 0 if "phase" in entry else number + 1
            if entry.keys() == {"step"}:
                entry["step"] = number
    return entries


def tried(name, mutants, seed, tmp_path, capsys):
    """Count the exit codes of so many forgeries; each that is accepted is judged."""
    text, judge = document(name, tmp_path, capsys), MAKERS[name][1]
    draw, codes, path = random.Random(f"{name} {seed}"), Counter(), tmp_path / "document"
    path.write_text(text)
    assert exit_code(["verify", str(path)]) == 0, capsys.readouterr()
    capsys.readouterr()
    for _ in range(mutants):
        found = forged(draw, name, text)
        path.write_bytes(found.encode("utf-8", "surrogatepass"))
        code = exit_code(["verify", str(path), "--json"])
        said = capsys.readouterr()
        assert "Traceback" not in said.err and "report it" not in said.err
        assert (code in (2, 3, 5)) == (said.err.count("\n") == 1) and (code == 2) == (not said.out), (code, said.err)
        assert code == 2 or (json.loads(said.out)["verdict"] in ACCEPTED) == (code == 0)
        changed = found.replace("\r\n", "\n").rstrip("\n") != text.rstrip("\n")
        codes[f"accepted, {'changed' if changed else 'the same'}" if code == 0 else f"exit {code}"] += 1
        if code == 0 and changed:
            try:
                judge(found, json.loads(said.out))
            except Exception as error:
                raise AssertionError(f"accepted although it is not true:\n{found}") from error
    return codes


@pytest.mark.parametrize("name", NAMES)
def test_no_forgery_passes_unless_what_it_says_is_true(name, tmp_path, capsys):
    mutants = 60 // MAKERS[name][2]
    codes = tried(name, mutants, 1, tmp_path, capsys)
    assert codes["exit 2"] + codes["exit 1"] > mutants / 3 and codes["exit 2"] > mutants / 8


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_of_thousands_of_forgeries_none_passes_unless_what_it_says_is_true(name, tmp_path, capsys):
    codes = tried(name, 3000, 2, tmp_path, capsys)
    with capsys.disabled():
        print(f"\n{name}: {json.dumps(dict(sorted(codes.items())))}")


LIES = {
    "certificate": [(r'"upper": "[^"]*"', '"upper": "1e-19"'), (r'"lower": "[^"]*"', '"lower": "0.9999"')],
    "ledger": [(r'"noise_multiplier": 6.0', '"noise_multiplier": 3.0'), (r'"epsilon": 2.5', '"epsilon": 0.5')],
    "statement": [(r"epsilon is at most [\d.]+", "epsilon is at most 0.1"), (r"added to or removed from", "added to")],
}
"""What a judge must see, by the first word of a document's name."""


@pytest.mark.parametrize("name", NAMES)
def test_the_judges_see_a_lie(name, tmp_path, capsys):
    text, judge = document(name, tmp_path, capsys), MAKERS[name][1]
    (tmp_path / "document").write_text(text)
    assert exit_code(["verify", str(tmp_path / "document"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    judge(text, said)
    for old, new in LIES[name.split()[0]]:
        assert re.search(old, text)
        with pytest.raises(AssertionError):
            judge(re.sub(old, new, text), said)
