"""Compute epsilon of every registered bound at delta 1e-5 on fixed settings, and its ratio to the best bound."""

import privproj
from privproj.accounting.comparison import compare
from privproj.mechanisms import Laplace

DELTA = 1e-5
RUN = {"steps": 2000, "sampling_rate": 0.01}

SETTINGS = (
    (privproj.Gaussian(noise_multiplier=1), {}),
    (privproj.Gaussian(noise_multiplier=10), {}),
    (privproj.Gaussian(noise_multiplier=20), {"steps": 100}),
    (privproj.Gaussian(noise_multiplier=1), {"steps": 1000, "sampling_rate": 0.01}),
    (Laplace(noise_multiplier=0.5), {}),
    (Laplace(noise_multiplier=2), {}),
    (Laplace(noise_multiplier=20), {"steps": 100}),
    (privproj.M1(dim=1000, rank=256, noise_multiplier=20), {}),
    (privproj.M1(dim=1000, rank=64, columns=1, misalignment=1.25e-3, noise_multiplier=20), {}),
    (privproj.M1(dim=1000, rank=64, span_dim=4, residual_misalignment=8e-6, noise_multiplier=20), {}),
    (privproj.M1(dim=1000, rank=64, span_dim=0, residual_misalignment=8e-6, noise_multiplier=20), {}),
    (privproj.M2(dim=2048, rank=16, change_rank=10, noise_multiplier=0.5), {}),
    (privproj.M2(dim=2048, rank=16, columns=2048, noise_multiplier=0.5), {}),
    (privproj.M2(dim=768, rank=64, change_rank=1, noise_multiplier=1), {}),
    (privproj.M2(dim=2048, rank=16, change_rank=10, noise_multiplier=0.155974), RUN),
    (privproj.Wishart(dim=1000, rank=16, misalignment=8e-6), {}),
    (privproj.Wishart(dim=1000, rank=256, misalignment=8e-6), {}),
    (privproj.Wishart(dim=50, rank=40, misalignment=1e-5), {}),
    (privproj.Wishart(dim=768, rank=64, misalignment=1e-6), {"steps": 10}),
    (privproj.WishartMatrix(dim=1000, rank=16, columns=8), {}),
    (privproj.Sketch(rank=16, gamma=1000, eigenvalues=768), {}),
    (privproj.Sketch(rank=16, frobenius_bound=1, sensitivity=0.05, noise_sigma=1, enforced=True), {}),
    (privproj.Sketch(rank=64, frobenius_bound=1, sensitivity=0.1, noise_sigma=1, enforced=True), {}),
    (privproj.Sketch(rank=16, gamma=1000, eigenvalues=768), {"steps": 10}),
    (privproj.PublicSketch(rank=16, noise_multiplier=1), {}),
    (privproj.PublicSketch(rank=256, noise_multiplier=1), {}),
    (privproj.PublicSketch(rank=16, noise_multiplier=4), RUN),
)


def words(mechanism, run):
    """A setting in a line."""
    parts = [*mechanism.parameters().items(), *run.items()]
    return f"{mechanism.name}: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts)


def row_of(row, best):
    """One bound on one setting."""
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
    """Every bound on one setting, the tightest sound one as the measure."""
    rows = compare(mechanism, delta=DELTA, **run)
    values = [r.result.value for r in rows if r.result is not None and r.result.usable and r.result.value]
    best = min(values, default=None)
    return {"setting": words(mechanism, run), "best": best, "rows": [row_of(r, best) for r in rows]}


def tightness():
    """All settings."""
    return [setting_rows(mechanism, run) for mechanism, run in SETTINGS]


def lines(settings):
    """The Markdown table."""
    yield "| mechanism and run | bound | epsilon | / best | status |"
    yield "| --- | --- | --- | --- | --- |"
    for setting in settings:
        for i, row in enumerate(setting["rows"]):
            name = setting["setting"] if i == 0 else ""
            yield f"| {name} | `{row['bound']}`{' (exact)' if row.get('exact') else ''} | {shown(row)} |"


def shown(row):
    """The last three cells."""
    if row["epsilon"] is None:
        return f"- | - | {row['status']}: {short(row['why'])}"
    if row["epsilon"] == "none":
        return f"no finite one | - | {row['status']}"
    return (
        f"{row['epsilon']:.4g} | {row['ratio']:.3f} | {row['status']}"
        if row["ratio"]
        else f"{row['epsilon']:.4g} | - | {row['status']}"
    )


def short(reason):
    """The first clause of a refusal."""
    return reason.split(";")[0].split(": ")[-1][:90].replace("|", "/")
