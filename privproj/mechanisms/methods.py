"""Names of published methods, and the mechanism that accounts for each or, if its claim is refuted, replaces it.

``privproj explain NAME`` and ``privproj bounds NAME`` read this table, errors for an unknown mechanism name it, and
``docs/how-to-choose.md`` shows it. Its rows stand in ``methods.toml`` beside this file.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from privproj.errors import InvalidParameter, PrivprojError, Refused, unknown_name


@dataclass(frozen=True)
class _Method:
    """A published method: what it releases, and what accounts for that.

    * ``name``: its name in the literature.
    * ``also``: names of methods of which all of this holds too.
    * ``mechanisms``: the mechanisms that account for it, the usual one first.
    * ``released``: what an observer of all steps sees, in a sentence.
    * ``accounted``: with which options, in a sentence.
    * ``mistake``: what goes wrong, in a sentence.
    * ``source``: where it is described.
    * ``refuted``: the counterexample to its privacy claim, in a clause; empty unless the claim is refuted.
    """

    name: str
    mechanisms: Sequence[str]
    released: str
    accounted: str
    mistake: str
    source: str
    also: Sequence[str] = ()
    refuted: str = ""

    @property
    def words(self) -> str:
        """All that is known of it, in sentences."""
        reason = f" Its claim is refuted: {self.refuted} (docs/not-a-guarantee.md)." if self.refuted else ""
        return f"{self.released} {self.accounted} {self.mistake}{reason} Source: {self.source}."


METHODS = tuple(
    _Method(**entry)
    for entry in tomllib.loads(files("privproj.mechanisms").joinpath("methods.toml").read_text(encoding="utf-8"))[
        "method"
    ]
)
"""The methods, in the order in which the documentation shows them. Contract."""


LORA_NAMES = ("lora", "qlora", "peft")
"""Names of training that may be private or not, and m2 or gaussian, by what it clips and noises."""


def find_method(name: str) -> _Method | None:
    """Return the method of this name, however it is spelt; None if there is none."""
    asked = _spelling(name)
    return next((m for m in METHODS if asked in map(_spelling, (m.name, *m.also))), None)


def unknown_mechanism(parameter: str, name: str, names: Iterable[str], remedy: str = "") -> PrivprojError:
    """Return the error for a name that is not a mechanism.

    It names what accounts for a published method, or why its claim is refuted, else the nearest names.
    """
    method = find_method(name)
    if _spelling(name) in LORA_NAMES:
        advice = "which one accounts for LoRA, if any, depends on what is clipped, as `privproj explain LoRA` says"
        return InvalidParameter(parameter, name, "a mechanism", advice)
    if method is None:
        return unknown_name(parameter, name, "a mechanism", names, remedy)
    mechanisms = " or ".join(method.mechanisms)
    if method.refuted:
        return Refused(
            f"{method.name} is refuted, not a guarantee: {method.refuted}; use {mechanisms}, and see "
            "docs/not-a-guarantee.md for the counterexample"
        )
    advice = f"{method.name} is accounted as {mechanisms}, as `privproj explain {method.name}` says"
    return InvalidParameter(parameter, name, "a mechanism", advice)


def _spelling(name: str) -> str:
    """A name without what may be spelt differently: capitals, hyphens, underscores, spaces."""
    return re.sub(r"[\s_-]+", "", name.lower())
