"""Names of published training methods, and the mechanism that accounts for each: what people search for.

``privproj explain NAME`` and ``privproj bounds NAME`` read this table, errors for an unknown mechanism name it, and
``docs/how-to-choose.md`` shows it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from privproj.errors import InvalidParameter, unknown_name


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
    """

    name: str
    also: tuple[str, ...]
    mechanisms: tuple[str, ...]
    released: str
    accounted: str
    mistake: str
    source: str

    @property
    def words(self) -> str:
        """All that is known of it, in sentences."""
        return f"{self.released} {self.accounted} {self.mistake} Source: {self.source}."


METHODS = (
    _Method(
        "DP-SGD",
        ("DP-Adam", "DP-AdamW"),
        ("gaussian",),
        "The sum of clipped gradients plus Gaussian noise; momentum and the moments of Adam are computed from it.",
        "Use gaussian, one release for each step.",
        "Wrong: shuffled batches accounted as Poisson ones.",
        "arXiv 1607.00133",
    ),
    _Method(
        "ghost clipping",
        ("fast gradient clipping", "book-keeping"),
        ("gaussian",),
        "What DP-SGD releases: the norms are exact, only the gradients of single records are never formed.",
        "Use gaussian, one release for each step.",
        "Wrong: each layer clipped at C and accounted at C; the norm is then the root of the sum of the squared clips.",
        "arXiv 2110.05679",
    ),
    _Method(
        "DP-SGD-JL",
        ("DP-Adam-JL",),
        ("jl-clip",),
        "The sum of gradients that were clipped by estimates of their norms, plus Gaussian noise.",
        "Use jl-clip with the number of probes.",
        "Wrong: gaussian, since a norm that is estimated too small is clipped too little.",
        "arXiv 2102.03013",
    ),
    _Method(
        "DP-LoRA",
        (),
        ("gaussian",),
        "The clipped gradients of LoRA's factors A and B plus Gaussian noise.",
        "Use gaussian, with the clip of both factors together.",
        "Wrong: each factor clipped at C and accounted at C; together they have the norm 1.42 C.",
        "arXiv 2110.06500",
    ),
    _Method(
        "FFA-LoRA",
        ("LoRA-FA", "DP-LoRA-FA"),
        ("gaussian",),
        "The clipped gradients of LoRA's factor B plus Gaussian noise, A random and frozen.",
        "Use gaussian, one release for each step; over clients, with what one client or record changes.",
        "Wrong: m2, since what is clipped is the gradient of B and not the whole gradient.",
        "arXiv 2403.12313",
    ),
    _Method(
        "DP-GRAPE",
        (),
        ("gaussian",),
        "Gradients in a random small space, where they are clipped and Gaussian noise is added.",
        "Use gaussian: where clip and noise come after the projection, it hides nothing and costs nothing.",
        "Wrong: m2, which clips and noises the whole gradient first; a clip before the projection is sketch-public.",
        "arXiv 2506.15588",
    ),
    _Method(
        "GaLore",
        ("DP-GaLore",),
        ("gaussian",),
        "Gradients in a small space of singular vectors; with privacy, clipped and noised there.",
        "Use gaussian, if the singular vectors are those of noised gradients or of public data.",
        "Wrong: singular vectors of the raw gradient, which are a release of their own without any noise.",
        "arXiv 2403.03507",
    ),
    _Method(
        "Flora",
        (),
        ("gaussian",),
        "Gradients in a random sketch that is drawn anew every few steps; with privacy, clipped and noised there.",
        "Use gaussian, if the clip comes after the sketch; the momentum is computed from what is released.",
        "Wrong: a clip before the sketch accounted as gaussian; it is sketch-public with a fresh sketch each step.",
        "arXiv 2402.03293",
    ),
    _Method(
        "RGP",
        ("reparametrized gradient perturbation",),
        ("gaussian",),
        "The clipped gradients of two small carrier matrices of each weight, plus Gaussian noise.",
        "Use gaussian, with the clip of all carriers together; carriers come from earlier releases.",
        "Wrong: carriers computed from raw gradients.",
        "arXiv 2106.09352",
    ),
    _Method(
        "DP-ZO",
        ("DPZero", "DP zeroth order"),
        ("gaussian", "laplace"),
        "For each random direction one number, the sum of the records' clipped loss differences, plus noise.",
        "Use gaussian or laplace for each direction, or gaussian for each step if its numbers are clipped as a vector.",
        "Wrong: noise drawn anew for each tensor, which shows one number many times: over K tensors z is z/sqrt(K).",
        "arXiv 2401.04343 and 2310.09639",
    ),
    _Method(
        "DP-FedAvg",
        ("DP-FedSGD",),
        ("gaussian",),
        "The sum of the clients' clipped updates plus Gaussian noise.",
        "Use gaussian with clients as records: rate and neighbours are those of clients.",
        "Wrong: the rate at which a client samples its own records.",
        "arXiv 1710.06963",
    ),
)
"""The methods, in the order in which the documentation shows them. Contract."""


def find_method(name: str) -> _Method | None:
    """Return the method of this name, however it is spelt; None if there is none."""
    asked = _spelling(name)
    return next((m for m in METHODS if asked in map(_spelling, (m.name, *m.also))), None)


def unknown_mechanism(parameter: str, name: str, known: Iterable[str], remedy: str = "") -> InvalidParameter:
    """The error for a name that is no mechanism: what accounts for it if it is a method, else the nearest names."""
    method = find_method(name)
    if method is None:
        return unknown_name(parameter, name, "a mechanism", known, remedy)
    found = " or ".join(method.mechanisms)
    advice = f"{method.name} is accounted as {found}, as `privproj explain {method.name}` says"
    return InvalidParameter(parameter, name, "a mechanism", advice)


def _spelling(name: str) -> str:
    """A name without what may be spelt differently: capitals, hyphens, underscores, spaces."""
    return re.sub(r"[\s_-]+", "", name.lower())
