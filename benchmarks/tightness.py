"""Compute epsilon of every registered bound at delta 1e-5 on fixed settings, and its ratio to the best bound."""

import privproj
from privproj.accounting.comparison import compare
from privproj.mechanisms import Laplace

DELTA = 1e-5
RUN = {"steps": 2000, "sampling_rate": 0.01}

# mechanism, run, and the title of the row in docs/benchmarks.md, if it has one
SETTINGS = (
    (privproj.Gaussian(noise_multiplier=1), {}, None),
    (privproj.Gaussian(noise_multiplier=10), {}, None),
    (privproj.Gaussian(noise_multiplier=20), {"steps": 100}, None),
    (privproj.Gaussian(noise_multiplier=1), {"steps": 1000, "sampling_rate": 0.01}, "DP-SGD, z 1, q 0.01, 1000 steps"),
    (Laplace(noise_multiplier=0.5), {}, None),
    (Laplace(noise_multiplier=2), {}, None),
    (Laplace(noise_multiplier=20), {"steps": 100}, None),
    (privproj.M1(dim=1000, rank=256, noise_multiplier=20), {}, "M1, d 1000, r 256, z 20"),
    (
        privproj.M1(dim=1000, rank=64, columns=1, misalignment=1.25e-3, noise_multiplier=20),
        {},
        None,
    ),
    (privproj.M1(dim=1000, rank=64, span_dim=4, residual_misalignment=8e-6, noise_multiplier=20), {}, None),
    (privproj.M1(dim=1000, rank=64, span_dim=0, residual_misalignment=8e-6, noise_multiplier=20), {}, None),
    (privproj.M2(dim=2048, rank=16, change_rank=10, noise_multiplier=0.5), {}, None),
    (privproj.M2(dim=2048, rank=16, columns=2048, noise_multiplier=0.5), {}, "M2, d 2048, r 16, z 0.5"),
    (privproj.M2(dim=768, rank=64, change_rank=1, noise_multiplier=1), {}, None),
    (
        privproj.M2(dim=2048, rank=16, change_rank=10, noise_multiplier=0.155974),
        RUN,
        "M2, d 2048, r 16, z 0.156, q 0.01, 2000 steps, assumed `change_rank` 10",
    ),
    (privproj.Wishart(dim=1000, rank=16, misalignment=8e-6), {}, "Wishart, d 1000, r 16, misalignment 8e-6"),
    (privproj.Wishart(dim=1000, rank=256, misalignment=8e-6), {}, None),
    (privproj.Wishart(dim=50, rank=40, misalignment=1e-5), {}, None),
    (
        privproj.Wishart(dim=768, rank=64, misalignment=1e-6),
        {"steps": 10},
        None,
    ),
    (privproj.WishartMatrix(dim=1000, rank=16, columns=8), {}, None),
    (privproj.Sketch(rank=16, gamma=1000, eigenvalues=768), {}, "Sketch, gamma 1000, r 16"),
    (
        privproj.Sketch(rank=16, frobenius_bound=1, sensitivity=0.05, noise_sigma=1, enforced=True),
        {},
        None,
    ),
    (privproj.Sketch(rank=64, frobenius_bound=1, sensitivity=0.1, noise_sigma=1, enforced=True), {}, None),
    (privproj.Sketch(rank=16, gamma=1000, eigenvalues=768), {"steps": 10}, None),
    (privproj.PublicSketch(rank=16, noise_multiplier=1), {}, None),
    (privproj.PublicSketch(rank=256, noise_multiplier=1), {}, None),
    (privproj.PublicSketch(rank=16, noise_multiplier=4), RUN, None),
)


def text(mechanism, run):
    parts = [*mechanism.parameters().items(), *run.items()]
    return f"{mechanism.name}: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts)


def row_of(row, best):
    """Return the row of one bound in one setting; ``best`` is the smallest epsilon of a valid bound."""
    found = {"bound": row.bound.name, "status": str(row.bound.status), "epsilon": None, "why": row.reason}
    if row.result is None or row.result.value is None:
        return found
    value = row.result.value
    found.update(status=str(row.result.status), outcome=str(row.result.outcome), lower=row.result.lower)
    ratio = value / best if best and value < float("inf") else None
    return found | {
        "epsilon": value if value < float("inf") else "none",
        "ratio": ratio,
        "exact": str(row.result.side) == "exact",
    }


def setting_rows(mechanism, run):
    """Return the rows of all bounds in one setting, with their ratios to the best bound."""
    rows = compare(mechanism, delta=DELTA, **run)
    values = [r.result.value for r in rows if r.result is not None and r.result.usable and r.result.value]
    best = min(values, default=None)
    return {"setting": text(mechanism, run), "best": best, "rows": [row_of(r, best) for r in rows]}


def tightness():
    return [setting_rows(mechanism, run) for mechanism, run, _ in SETTINGS]


STAR = {"proved": "", "conditional": "*"}  # mark of a status, in the footnote of the page


def summary(settings):
    """Return the Markdown table: for each chosen setting the smallest epsilon, and the ratios of all bounds to it."""
    yield "| mechanism and run | smallest epsilon | epsilon of each bound / smallest epsilon (*: with assumption) |"
    yield "| --- | --- | --- |"
    for (_, _, title), setting in zip(SETTINGS, settings, strict=True):
        if title is None:
            continue
        rows = sorted((row for row in setting["rows"] if row.get("ratio")), key=lambda row: row["ratio"])
        ratios = (
            f"`{row['bound']}`{'*' if row['status'] == 'conditional' else ''} {short(row['ratio'])}" for row in rows
        )
        yield f"| {title} | {setting['best']:.4g} | {', '.join(ratios)} |"


def short(ratio):
    """Return a ratio with two decimals, or three digits if it is large."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"
