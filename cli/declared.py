"""What a question may say on the command line, as plain data: nothing here loads click.

The options of mechanisms, runs and targets come from where their parameters are declared
(:mod:`privproj.validation`); here stands what only the command line has.
"""

from collections.abc import Callable
from typing import Any

from privproj.accounting.question import FOUND
from privproj.mechanisms.base import ClippedSum
from privproj.mechanisms.registry import LINES, mechanism_named
from privproj.runs import RUN_PARAMETERS
from privproj.runs.targets import RISKS, TARGET_PARAMETERS
from privproj.validation import LAYERS, SHARE, TEXT, TRUTH, Parameter, parameters_of

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


PAIRS = ("residual_norm",)
"""Parameters whose option takes one value or two, of which the second is that of another parameter."""


def option_of(name: str, declared: Parameter, **settings: object) -> Declared:
    """Describe the option of a parameter."""
    option, kind = "--" + (declared.key or name).replace("_", "-"), declared.kind
    # What its own record asks for, in a better sentence than that of the command line, is only said here.
    words = f"{declared.words}  [required]" if declared.is_needed and not declared.is_found else declared.words
    if kind is TRUTH:
        return flag(option, words)
    if kind is LAYERS:
        settings |= {"type": "layer", "multiple": True}
    elif "enum" in kind.rule:
        settings["type"] = tuple(map(str, kind.rule["enum"]))
    elif kind in (TEXT, SHARE):
        settings["type"] = "text"
    elif name in PAIRS:
        settings["type"] = "norms"
    return value(option, words, declared.letter, **settings)


PEFT = (
    value("--from-peft", "A saved PEFT LoRA directory (local files): says what is trained.", "DIR", type="text"),
    value("--base", "Directory of its base model.", "DIR", type="text"),
)
"""The options that read an adapter; gaussian, which accounts for PEFT's own training, counts nothing from it."""

ADAPTERS: dict[str, tuple[Declared, ...]] = {
    "gaussian": PEFT,
    "m2": (
        *PEFT,
        flag("--whole-gradients", "With --from-peft: whole gradients were clipped and projected, not its factors."),
    ),
}
"""The mechanisms that read an adapter, with the options for it."""

MECHANISMS = tuple(dict.fromkeys(mechanism for mechanism, _ in LINES))
"""The names of all mechanisms, in the order in which they are listed."""

QUANTITIES: dict[str, Callable[[Any], bool]] = {
    "epsilon": lambda kind: True,
    "delta": lambda kind: True,
    "sigma": lambda kind: "noise_multiplier" in kind.__dataclass_fields__,
    "steps": lambda kind: True,
    "rate": lambda kind: kind.can_be_sampled,
    "rank": lambda kind: kind.finds_rank,
    "misalignment": lambda kind: kind.name == "wishart",
}
"""The quantities that are one number, and which mechanisms have each."""


def declared_by(mechanism: str, quantity: str) -> list[Declared]:
    """Return what describes a mechanism, without what the quantity finds."""
    kind = mechanism_named(mechanism)
    asked = [(name, found) for name, found in parameters_of(kind).items() if found.words]
    asked.sort(key=lambda named: named[0] in parameters_of(ClippedSum))  # what many mechanisms have is last
    options = [option_of(name, found, required=found.is_found) for name, found in asked]
    lost = ["--" + name.replace("_", "-") for name in FOUND.get(quantity, ())]
    return [option for option in (*options, *ADAPTERS.get(mechanism, ())) if option[0] not in lost]


def example_words(mechanism: str, quantity: str) -> list[str]:
    """Return the mechanism's options in a call that works, for examples."""
    values = dict(pair.split("=") for pair in mechanism_named(mechanism).example.split())
    return [f"{option} {values[name]}" for option, _, _ in declared_by(mechanism, quantity)
            if (name := option[2:].replace("-", "_")) in values]  # fmt: skip


BOUND = value("--bound", "Bound to use; `privproj bounds` lists them.", "NAME", type="text")
PROOF = (
    flag("--certify", "Prove the answer by ball arithmetic (extra: certify)."),
    value("--certificate", "Write the proof's JSON file here; `privproj verify` checks it.", "FILE", type="text"),
)
CLIP = value("--clip", "Clipping norm C: prints the noise standard deviation too.", "C")
POWERS = ("epsilon", "sigma", "rank", "steps", "rate", "misalignment")
"""Quantities that can be asked for deltas far below double precision."""
CERTIFIABLE = ("epsilon", "delta", "sigma")
"""Quantities whose answers can be certified."""


def target_of(quantity: str) -> list[Declared]:
    """Return ``--epsilon`` and ``--delta``, as the quantity needs them."""
    names = {"epsilon": ["delta"], "report": ["delta"], "delta": ["epsilon"]}.get(quantity, ["epsilon", "delta"])
    names += ["log10_delta"] if quantity in POWERS else []
    names += RISKS if quantity == "sigma" else []
    needed = ("epsilon",) if quantity not in ("compare", "sigma") else ()
    return [option_of(name, TARGET_PARAMETERS[name], required=name in needed) for name in names]


def run_of(quantity: str) -> list[Declared]:
    """Return what describes a run: steps and rate, or what people have (batch size, data set size, epochs)."""
    asked = [(name, found) for name, found in RUN_PARAMETERS.items() if name not in FOUND.get(quantity, ())]
    options = [option_of(name, found) for name, found in asked if found.words]
    return options if quantity == "compare" else [*options, CLIP]


def answer_of(quantity: str) -> list[Declared]:
    """Return what says how an answer is found and shown."""
    return [
        flag("--json", "One JSON object instead of text."),
        BOUND,
        flag("--allow-refuted", "Print a number that is no guarantee, marked."),
        *(PROOF if quantity in CERTIFIABLE else ()),
    ]
