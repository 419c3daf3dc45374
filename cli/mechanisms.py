"""The mechanisms as the command line knows them: options, summaries, and values for examples that work."""

from dataclasses import dataclass, field

import click

from privproj.mechanisms import (
    M1,
    M2,
    Gaussian,
    Laplace,
    Mechanism,
    NoisyMechanism,
    PublicSketch,
    Sketch,
    Wishart,
    WishartMatrix,
)

from .options import LAYER, LAYER_HELP, NORMS, OneOf, option


@dataclass(frozen=True)
class Entry:
    """One mechanism: its class, a summary, its options, and example values by option."""

    kind: type[Mechanism]
    summary: str
    options: tuple[tuple[str, str, dict], ...]
    example: dict[str, str] = field(default_factory=dict)


def flag(name: str, words: str) -> tuple[str, str, dict]:
    """Describe an option without a value."""
    return name, words, {"is_flag": True}


def value(name: str, words: str, letter: str, **settings: object) -> tuple[str, str, dict]:
    """Describe an option with a value."""
    return name, words, {"metavar": letter, **settings}


NOISE = value("--noise-multiplier", "z = noise standard deviation / sensitivity.", "Z", required=True)
SCALE = value("--noise-multiplier", "z = noise scale / sensitivity in the 1-norm.", "Z", required=True)

MECHANISMS: dict[str, Entry] = {
    "gaussian": Entry(Gaussian, "Plain Gaussian mechanism (DP-SGD).", (NOISE,), {"noise_multiplier": "1"}),
    "laplace": Entry(Laplace, "Plain Laplace mechanism.", (SCALE,), {"noise_multiplier": "2"}),
    "m1": Entry(
        M1,
        "Clip and project first, then add noise (large rank).",
        (
            value("--dim", "Side of the layer that is projected.", "D"),
            value("--rank", "Rank of the projection (may exceed D).", "R"),
            value("--columns", "The layer's other side.", "M"),
            flag("--fixed-projection", "One projection for all steps."),
            value("--misalignment", "Promise on a unit vector (columns 1): 1 - cos of neighbours.", "M"),
            value("--span-dim", "Promise: the unchanged columns span this many dimensions.", "K"),
            value("--residual-norm", "Norm of the changed column orthogonal to them.", "K[,K']", type=NORMS),
            value("--residual-misalignment", "Promise: 1 - cos of these parts.", "M"),
            value("--shift-in-span", "Promise: largest change within the span.", "A"),
            value("--changed-columns", "Columns that change (a chain).  [default: 1]", "C"),
            NOISE,
        ),
        {"dim": "1000", "rank": "256", "noise_multiplier": "20"},
    ),
    "m2": Entry(
        M2,
        "Clip the whole gradient, add noise, then project it to a fresh small subspace.",
        (
            value("--dim", "Side of the layer that is projected.", "D"),
            value("--rank", "Rank of the projection.", "R"),
            value("--layer", LAYER_HELP, "DxR[xN][@SHARE]", type=LAYER, multiple=True),
            value("--from-peft", "Layers of a PEFT LoRA directory (local files).", "DIR", type=str),
            value("--base", "Directory of its base model.", "DIR", type=str),
            (
                "--clipping",
                "One clip C for all layers, or one each (C^2 is the sum of their squares).",
                {"type": OneOf(["joint", "per-layer"])},
            ),
            value("--columns", "The layer's other side.", "M"),
            value("--change-rank", "Promise: one record changes the gradient by at most this rank.", "K"),
            flag("--fixed-projection", "One projection for all steps."),
            NOISE,
        ),
        {"dim": "2048", "rank": "16", "noise_multiplier": "0.3814"},
    ),
    "wishart": Entry(
        Wishart,
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
        WishartMatrix,
        "A matrix multiplied by a Wishart matrix, no noise added: not private.",
        (
            value("--dim", "Rows of the matrix query.", "D"),
            value("--rank", "Degrees of freedom of the Wishart matrix.", "R"),
            value("--columns", "Columns of the matrix query.", "M"),
        ),
        {"dim": "64", "rank": "16", "columns": "8"},
    ),
    "sketch": Entry(
        Sketch,
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
        PublicSketch,
        "Gaussian sketch known to all, noise after.",
        (
            value("--rank", "Rows of the sketching matrix.", "R"),
            value("--dim", "Columns of the sketching matrix; plays no role.", "D"),
            flag("--fixed-projection", "One sketching matrix for all steps."),
            NOISE,
        ),
        {"rank": "16", "noise_multiplier": "5"},
    ),
}

NOISY = tuple(name for name, entry in MECHANISMS.items() if issubclass(entry.kind, NoisyMechanism))
"""Mechanisms with a noise multiplier to be found."""

RANKED = tuple(name for name, entry in MECHANISMS.items() if entry.kind.finds_rank)
"""Mechanisms with a rank to be found."""

SAMPLED = tuple(name for name, entry in MECHANISMS.items() if entry.kind.can_be_sampled)
"""Mechanisms with a bound under subsampling."""

FOUND = {"sigma": ["noise_multiplier"], "rank": ["rank"], "misalignment": ["misalignment", "alignment"]}


def mechanism_options(mechanism: str, quantity: str) -> list[click.Option]:
    """Return the options that describe a mechanism, without the one that the quantity finds."""
    options = [option(name, words, **settings) for name, words, settings in MECHANISMS[mechanism].options]
    return [o for o in options if o.name not in FOUND.get(quantity, [])]


def example_words(mechanism: str, quantity: str) -> list[str]:
    """Return the mechanism's options in a call that works, for examples."""
    values = MECHANISMS[mechanism].example
    names = [str(o.name) for o in mechanism_options(mechanism, quantity)]
    return [f"--{name.replace('_', '-')} {values[name]}" for name in names if name in values]
