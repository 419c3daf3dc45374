"""Tampered ledgers: each is rejected or fails, or its statement is still true.

``assess`` shares no code with the verification: it recomputes the statement of an accepted document by mpmath
or by the accountant, from the parameters in the document.
"""

import mpmath as mp
from unit.io.tampering import Document, chained, edited, entries_of, tampering_tests

from privproj import reference
from privproj.schedule import from_data

SLACK = 1e-6
"""Relative difference that the rounding of a printed number to four digits is allowed on another machine."""

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


def assess_ledger(text, output):
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
    assert output["steps"] == sum(made) and not any(
        steps > phase["steps"] for phase, steps in zip(phases, made, strict=True)
    )
    if done:
        assert output["epsilon"] >= epsilon_of(done, output["delta"]) * (1 - 1e-12)
    begun = [phase for phase, steps in zip(plan, made, strict=True) if steps or phase is plan[-1]]
    assert output["epsilon_of_plan"] >= epsilon_of(begun, output["delta"]) * (1 - 1e-12)
    if targets[-1].keys() == {"epsilon", "delta"}:
        assert targets[-1]["epsilon"] * (1 + SLACK) >= epsilon_of(last, targets[-1]["delta"]) * (1 - 1e-9)


def epsilon_of(phases, delta):
    """Epsilon of these phases; in mpmath where all are Gaussian on the whole dataset, z^-2 = sum of T/z^2."""
    plain = [
        p["mechanism"] == "gaussian" and p["sampling_rate"] == 1.0 and p["relation"] == "add-remove" for p in phases
    ]
    alone = not any(key in phase for phase in phases for key in ("group_size", "sampling", "batches"))
    if all(plain) and alone:
        joint = sum(phase["steps"] / mp.mpf(phase["noise_multiplier"]) ** 2 for phase in phases) ** -0.5
        return float(reference.value("gaussian.analytic.epsilon", 20, delta=delta, noise_multiplier=joint))
    return from_data({"phase": phases}).epsilon(delta=delta).value


def forged_entries(draw, entries):
    """Return the entries with one line edited, moved, doubled or left out, and the steps numbered again or not."""
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


def forge(draw, text):
    """Return the ledger with forged entries and its hashes computed again."""
    return chained(forged_entries(draw, entries_of(text.encode()))).decode()


LIES = [(r'"noise_multiplier": 6.0', '"noise_multiplier": 3.0'), (r'"epsilon": 2.5', '"epsilon": 0.5')]
FIRST, SECOND = {**GAUSSIAN, **WHOLE}, {**GAUSSIAN, "noise_multiplier": 9.0, "steps": 5, **WHOLE}
DOCUMENTS = {
    "ledger of one phase": Document(ledger_of(FIRST), assess_ledger, forge, LIES),
    "ledger of two phases": Document(ledger_of(FIRST, SECOND), assess_ledger, forge, LIES, cost=4),
}

(
    test_accepted_forgeries_are_true,
    test_thousands_of_accepted_forgeries_are_true,
    test_assess_detects_false_statements,
) = tampering_tests(DOCUMENTS)
