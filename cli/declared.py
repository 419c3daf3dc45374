"""What a question may say on the command line, as plain data: nothing here loads click."""

from typing import Any

from privproj.accounting.question import FOUND
from privproj.runs.sampling import Sampling

Declared = tuple[str, str, dict[str, Any]]
"""An option: its name with dashes, its help, and its settings.

``type`` is "text", "layer", "norms" or a tuple of the words that are allowed; without it the value is a number.
"""


def flag(name: str, words: str) -> Declared:
    """Describe an option without a value."""
    return name, words, {"is_flag": True}


def value(name: str, words: str, letter: str | None = None, **settings: object) -> Declared:
    """Describe an option with a value."""
    return name, words, {"metavar": letter, **settings}


BOUND = value("--bound", "Bound to use; `privproj bounds` lists them.", "NAME", type="text")
PROOF = (
    flag("--certify", "Prove the answer by ball arithmetic (extra: certify)."),
    value("--certificate", "Write the proof's JSON file here; `privproj verify` checks it.", "FILE", type="text"),
)
POWERS = ("epsilon", "sigma", "rank", "steps", "rate", "misalignment")
"""Quantities that can be asked for deltas far below double precision."""
CERTIFIABLE = ("epsilon", "delta", "sigma")
"""Quantities whose answers can be certified."""

RISKS = (
    value("--advantage", "Instead of these: largest TPR - FPR of any membership attack.", "A"),
    value("--tpr", "Instead of these: largest true positive rate of any attack at --fpr.", "B"),
    value("--fpr", "False positive rate at which --tpr is the limit.", "A"),
)
"""The targets of a calibration to a risk."""


def target_of(quantity: str) -> list[Declared]:
    """Return ``--epsilon`` and ``--delta``, as the quantity needs them."""
    epsilon = value("--epsilon", "Privacy loss epsilon.", "E", required=quantity not in ("compare", "sigma"))
    delta = value("--delta", "Failure probability delta.", "D")
    power = value("--log10-delta", "Instead of --delta: its decimal logarithm, for instance -1000.", "L")
    deltas = [delta, power] if quantity in POWERS else [delta]
    if quantity == "sigma":
        return [epsilon, *deltas, *RISKS]
    return {"epsilon": deltas, "report": deltas, "delta": [epsilon]}.get(quantity, [epsilon, *deltas])


def run_of(quantity: str) -> list[Declared]:
    """Return what describes a run: steps and rate, or what people have (batch size, data set size, epochs)."""
    found = ["--" + name.replace("_", "-") for name in {**FOUND, "compare": ("clip",)}.get(quantity, ())]
    options = [
        value("--steps", "Releases (epochs for partition, balls-in-bins, shuffle).  [default: 1, if not sampled]", "T"),
        value("--sampling-rate", "Rate at which a step samples records.  [default: 1]", "Q"),
        value("--sampling", "How a batch is drawn.", type=tuple(map(str, Sampling))),
        value("--batches", "Batches in an epoch, for balls-in-bins and shuffle.", "T"),
        value("--batches-per-record", "Batches of an epoch that a record is in.  [default: 1]", "K"),
        value("--max-batch-size", "Largest Poisson batch; the surplus is dropped.", "B"),
        value("--relation", "Neighbouring relation.", type=("add-remove", "replace", "zero-out")),
        value("--group-size", "Protect the K records of one person.  [default: 1]", "K"),
        value("--discretization", "Grid of a composition.  [default: from the run]", "H"),
        value("--composer", "Who composes.", type=("privproj", "dp-accounting")),
        value("--split", "Share of delta for the first event: even, optimal or a number.", "S", type="text"),
        value("--batch-size", "Batch size, instead of the rate.", "B"),
        value("--dataset-size", "Number of records.", "N"),
        value("--epochs", "Passes over the data, instead of the steps.", "E"),
        value("--clip", "Clipping norm C: prints the noise standard deviation too.", "C"),
    ]
    return [declared for declared in options if declared[0] not in found]


def answer_of(quantity: str) -> list[Declared]:
    """Return what says how an answer is found and shown."""
    return [
        flag("--json", "One JSON object instead of text."),
        BOUND,
        flag("--allow-refuted", "Print a number that is no guarantee, marked."),
        *(PROOF if quantity in CERTIFIABLE else ()),
    ]
