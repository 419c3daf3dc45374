"""Map published training methods to the mechanisms that account for them.

If the privacy claim of a method is refuted, its mechanisms are those to use instead of the method. The table is in
``methods.toml`` of this package, and in files of the same name in optional features.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privproj.errors import PrivprojError, UnknownNameError, UnsupportedError, unknown_name


@dataclass(frozen=True)
class _Method:
    """A published training method, and how privproj accounts for it.

    Attributes:
        name: The name in the literature.
        also: Names of other methods with the same entry.
        mechanisms: The names of mechanisms that account for the method, the most common one first; empty if none does.
        released: The outputs that an adversary observes over all steps.
        accounted: How to account for the method.
        mistake: A caution in accounting for the method, such as a common mistake.
        source: The paper.
        refuted: The counterexample to the privacy claim of the method, as a clause; empty if the claim is not refuted.
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
    def text(self) -> str:
        """The text that ``privproj explain`` prints for the method."""
        reason = f" The published claim is refuted: {self.refuted} (docs/not-a-guarantee.md)." if self.refuted else ""
        return f"{self.released} {self.accounted} {self.mistake}{reason} Source: {self.source}."


_PACKAGE = Path(__file__).parents[1]
# methods in the order of the documentation; those of optional features come last
METHODS = tuple(
    _Method(**entry)
    for path in (_PACKAGE / "mechanisms" / "methods.toml", *sorted(_PACKAGE.glob("contrib/*/methods.toml")))
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["method"]
)


LORA_NAMES = ("lora", "qlora", "peft")  # the mechanism depends on what is clipped and where noise is added


def find_method(name: str) -> _Method | None:
    """Return the published method of this name; None if there is none.

    The comparison ignores case, hyphens, underscores and spaces.
    """
    requested = _spelling(name)
    return next((m for m in METHODS if requested in map(_spelling, (m.name, *m.also))), None)


def unknown_mechanism(parameter: str, name: str, names: Iterable[str], remedy: str = "") -> PrivprojError:
    """Return the error for a name that is not a mechanism.

    For a published method, the error names mechanisms to use or states why its privacy claim is refuted. Otherwise it
    suggests the nearest names.
    """
    method = find_method(name)
    if _spelling(name) in LORA_NAMES:
        advice = "the mechanism for LoRA depends on what is clipped: see `privproj explain LoRA`"
        return UnknownNameError(parameter, name, "mechanism", advice)
    if method is None:
        return unknown_name(parameter, name, "mechanism", names, remedy)
    mechanisms = " or ".join(method.mechanisms)
    if method.refuted:
        return UnsupportedError(
            f"the privacy claim of {method.name} is refuted: {method.refuted}. Use {mechanisms}; "
            "docs/not-a-guarantee.md has the counterexample"
        )
    of_method = f"for {method.name} use {mechanisms}" if mechanisms else f"no mechanism accounts for {method.name}"
    return UnknownNameError(parameter, name, "mechanism", f"{of_method} (see `privproj explain {method.name}`)")


def _spelling(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())
