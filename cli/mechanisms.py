"""The mechanisms as the command line knows them: options, summaries, and values for examples that work."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .declared import FOUND, Declared, flag, value

if TYPE_CHECKING:
    from privproj.mechanisms import Mechanism


class Entry:
    """One mechanism: its class, a summary, its options, and example values by option."""

    def __init__(self, kind: str, summary: str, options: tuple[Declared, ...], example: dict[str, str]) -> None:
        self._kind, self.summary, self.options, self.example = kind, summary, options, example

    @property
    def kind(self) -> "type[Mechanism]":
        """The class, which is imported when it is asked for."""
        from privproj import mechanisms

        return getattr(mechanisms, self._kind)


NOISE = value("--noise-multiplier", "z = noise standard deviation / sensitivity.", "Z", required=True)
SCALE = value("--noise-multiplier", "z = noise scale / sensitivity in the 1-norm.", "Z", required=True)
COUNT = value("--adaptive-clipping-sigma", "Noise on the sum of +-1/2 (clipped or not) that adapts the clip.", "S")
PEFT = (
    value("--from-peft", "A saved PEFT LoRA directory (local files): says what is trained.", "DIR", type="text"),
    value("--base", "Directory of its base model.", "DIR", type="text"),
)
"""The options that read an adapter; gaussian, which accounts for PEFT's own training, counts nothing from it."""

MECHANISMS: dict[str, Entry] = {
    "gaussian": Entry(
        "Gaussian", "Plain Gaussian mechanism (DP-SGD).", (*PEFT, NOISE, COUNT), {"noise_multiplier": "1"}
    ),
    "laplace": Entry("Laplace", "Plain Laplace mechanism.", (SCALE,), {"noise_multiplier": "2"}),
    "m1": Entry(
        "M1",
        "Clip and project first, then add noise (large rank).",
        (
            value("--dim", "Side of the layer that is projected.", "D"),
            value("--rank", "Rank of the projection (may exceed D).", "R"),
            value("--columns", "The layer's other side.", "M"),
            flag("--fixed-projection", "One projection for all steps."),
            value("--misalignment", "Promise on a unit vector (columns 1): 1 - cos of neighbours.", "M"),
            value("--span-dim", "Promise: the unchanged columns span this many dimensions.", "K"),
            value("--residual-norm", "Norm of the changed column orthogonal to them.", "K[,K']", type="norms"),
            value("--residual-misalignment", "Promise: 1 - cos of these parts.", "M"),
            value("--shift-in-span", "Promise: largest change within the span.", "A"),
            value("--changed-columns", "Columns that change (a chain).  [default: 1]", "C"),
            NOISE,
        ),
        {"dim": "1000", "rank": "256", "noise_multiplier": "20"},
    ),
    "m2": Entry(
        "M2",
        "Clip the whole gradient, add noise, then project it to a fresh small subspace.",
        (
            value("--dim", "Side of the layer that is projected.", "D"),
            value("--rank", "Rank of the projection.", "R"),
            value(
                "--layer",
                "N layers projected from D to R; DxD: not projected, whatever its other side. May be repeated.",
                "DxR[xN][@SHARE]",
                type="layer",
                multiple=True,
            ),
            *PEFT,
            flag("--whole-gradients", "With --from-peft: whole gradients were clipped and projected, not its factors."),
            (
                "--clipping",
                "One clip C for all layers, or one each (C^2 is the sum of their squares).",
                {"type": ("joint", "per-layer")},
            ),
            value("--columns", "The layer's other side.", "M"),
            value("--change-rank", "Promise: one record changes the gradient by at most this rank.", "K"),
            flag("--fixed-projection", "One projection for all steps."),
            COUNT,
            NOISE,
        ),
        {"dim": "2048", "rank": "16", "noise_multiplier": "0.3814"},
    ),
    "wishart": Entry(
        "Wishart",
        "A vector multiplied by a fresh Wishart matrix, no noise added.",
        (
            value("--dim", "Dimension of the vector.", "D"),
            value("--rank", "Degrees of freedom of the matrix (may exceed D).", "R"),
            value("--misalignment", "Promise: 1 - cos of neighbouring vectors is at most this.", "M"),
            value("--alignment", "The same promise as a cosine.", "RHO"),
            value("--norm-ratio", "Promise: norms of neighbouring vectors differ by at most this factor.", "K"),
            flag("--fixed-projection", "One matrix for all steps."),
        ),
        {"dim": "1000", "rank": "16", "misalignment": "8e-6"},
    ),
    "wishart-matrix": Entry(
        "WishartMatrix",
        "A matrix multiplied by a Wishart matrix, no noise added: not private.",
        (
            value("--dim", "Rows of the matrix query.", "D"),
            value("--rank", "Degrees of freedom of the Wishart matrix.", "R"),
            value("--columns", "Columns of the matrix query.", "M"),
        ),
        {"dim": "64", "rank": "16", "columns": "8"},
    ),
    "sketch": Entry(
        "Sketch",
        "Secret Gaussian sketch plus noise, the sketching matrix used once.",
        (
            value("--rank", "Rows of the sketching matrix.", "R"),
            value("--gamma", "(eigenvalue floor + noise)/change, instead of the five options below.", "G"),
            value("--eigen-floor", "Promise: smallest eigenvalue of Q Q^T.  [default: 0]", "LAM"),
            value("--frobenius-bound", "Largest |Q|_F.", "BF"),
            value("--sensitivity", "Largest |Q - Q'|_F of neighbours.", "BS"),
            value("--sketch-sigma", "Deviation of the sketching matrix.  [default: 1/sqrt(R)]", "SA"),
            value("--noise-sigma", "Deviation of the noise.", "SG"),
            flag("--enforced", "Clipping enforces both norms (no promise then, at eigen floor 0)."),
            value("--eigenvalues", "Rank of Q Q^T - Q' Q'^T, for the bounds as printed.", "N"),
            value("--layer-count", "Independent sketches in one release.  [default: 1]", "L"),
            value("--step-smoothness", "Learning rate times smoothness (lora-by-design).", "EB"),
            flag("--fixed-projection", "One sketching matrix for all steps."),
        ),
        {"rank": "16", "gamma": "1000"},
    ),
    "sketch-public": Entry(
        "PublicSketch",
        "Gaussian sketch known to all, noise after.",
        (
            value("--rank", "Rows of the sketching matrix.", "R"),
            value("--dim", "Columns of the sketching matrix; plays no role.", "D"),
            flag("--fixed-projection", "One sketching matrix for all steps."),
            NOISE,
        ),
        {"rank": "16", "noise_multiplier": "5"},
    ),
    "mixing": Entry(
        "Mixing",
        "Secret sketch of records, its noise set by a private look at their least eigenvalue.",
        (
            value("--rank", "Rows of the sketching matrix.", "R"),
            value("--gamma", "Eigenvalue and noise aimed at together, over B^2.", "G", required=True),
            value("--eigen-noise", "Noise deviation of the released eigenvalue over B^2.", "Z", required=True),
        ),
        {"rank": "100", "gamma": "65", "eigen_noise": "7"},
    ),
    "jl-clip": Entry(
        "JLClip",
        "Clip by norms that Gaussian probes estimate, then add noise (DP-SGD-JL).",
        (
            value("--probes", "Gaussian vectors from which one norm is estimated.", "R", required=True),
            value("--noise-multiplier", "z = noise standard deviation / clip.", "Z", required=True),
        ),
        {"probes": "30", "noise_multiplier": "2"},
    ),
    "r1smg": Entry(
        "R1SMG",
        "Gaussian noise along one random direction: not private as claimed.",
        (value("--dim", "Length of the vector.", "M", required=True), NOISE),
        {"dim": "100", "noise_multiplier": "1.64"},
    ),
}

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
    found = ["--" + name.replace("_", "-") for name in FOUND.get(quantity, ())]
    return [declared for declared in MECHANISMS[mechanism].options if declared[0] not in found]


def example_words(mechanism: str, quantity: str) -> list[str]:
    """Return the mechanism's options in a call that works, for examples."""
    values = MECHANISMS[mechanism].example
    names = [name[2:].replace("-", "_") for name, _, _ in declared_by(mechanism, quantity)]
    return [f"--{name.replace('_', '-')} {values[name]}" for name in names if name in values]
