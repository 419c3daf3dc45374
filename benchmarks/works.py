"""Define the timed tasks: commands in a new process, calls in a warm process, and calls of growing size.

A warm task is a function of a number near 1 that scales one parameter, so that no cache contains the result.
"""

import os
import tempfile
from functools import partial
from pathlib import Path

import privproj as p

EXAMPLES = Path(__file__).parent.parent / "examples"
M2_SHAPE, RUN = "m2 --dim 2048 --rank 16", "--steps 2000 --sampling-rate .01"
WISHART, TEN = "wishart --dim 2048 --misalignment .001", "--steps 10"

# commands, with the limit of each in CPU seconds; the limit of ``epsilon gaussian`` is 4 times ``python -c pass``
COLD = {
    "python -c pass": (None, None),
    "--help": ("--help", None),
    "epsilon gaussian": ("epsilon gaussian --noise-multiplier 1 --delta 1e-5", None),
    "epsilon m2": (f"epsilon {M2_SHAPE} --noise-multiplier .5 --delta 1e-5", None),
    "sigma m2": (f"sigma {M2_SHAPE} --epsilon 1 --delta 1e-5", None),
    "epsilon gaussian, DP-SGD": (
        "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --steps 1000 --sampling-rate .01",
        0.25,
    ),
    "epsilon m2 of a run": (f"epsilon {M2_SHAPE} --noise-multiplier .155974 --delta 1e-5 {RUN}", 0.25),
    "sigma m2 of a run": (f"sigma {M2_SHAPE} --epsilon 1 --delta 1e-5 {RUN}", None),
    "compare m2 of a run": (f"compare {M2_SHAPE} --columns 768 --noise-multiplier .155974 --delta 1e-5 {RUN}", None),
    "curve m2, eight bounds": (f"curve {M2_SHAPE} --columns 768 --noise-multiplier .5 --bound all", None),
    "curve m2 of a run, eight bounds": (
        f"curve {M2_SHAPE} --columns 768 --noise-multiplier .155974 {RUN} --bound all",
        None,
    ),
    "run examples/run.toml": (f"run {EXAMPLES}/run.toml --delta 1e-5", 0.6),
    "remaining examples/run.toml": (f"remaining {EXAMPLES}/run.toml --epsilon 3 --delta 1e-5", 2.0),
    "check of 200 mixed entries": ("check {checks}", 3.0),
    "epsilon wishart of a run": (f"epsilon {WISHART} --rank 16 --delta 1e-5 {TEN}", 5.0),
    "rank wishart of a run": (f"rank {WISHART} --epsilon 8 --delta 1e-5 {TEN}", 5.0),
    "misalignment wishart of a run": (
        f"misalignment wishart --dim 2048 --rank 16 --epsilon 8 --delta 1e-5 {TEN}",
        5.0,
    ),
    "certify wishart of a run": (f"certify epsilon {WISHART} --rank 16 --delta 1e-5 {TEN}", 8.0),
    "compare wishart of a run": (f"compare {WISHART} --rank 16 --delta 1e-5 {TEN}", 5.0),
}


def m2(z=None, **more):
    return p.M2(**{"dim": 2048, "rank": 16, "noise_multiplier": z, **more})


def gaussian(z=None):
    return p.Gaussian(noise_multiplier=z)


def wishart(**more):
    return p.Wishart(**{"dim": 2048, "rank": 16, "misalignment": 0.001, **more})


def m1(z=None, rank=512):
    return p.M1(dim=2048, rank=rank, noise_multiplier=z)


AT = {"delta": 1e-5}
GOAL = {"epsilon": 1.0, "delta": 1e-5}
COMPOSED = {"steps": 2000, "sampling_rate": 0.01, **AT}
DP_SGD = {"sampling_rate": 0.01, **AT}
SHAPE = {"columns": 768}

# calls in a process that has evaluated the same query before
WARM = {
    "gaussian epsilon": lambda n: p.epsilon(gaussian(n), **AT),
    "gaussian delta": lambda n: p.delta(gaussian(n), epsilon=1.0),
    "gaussian sigma": lambda n: p.sigma(gaussian(), epsilon=n, delta=1e-5),
    "m2 rank-free epsilon": lambda n: p.epsilon(m2(0.5 * n), **AT),
    "m2 rank-free delta": lambda n: p.delta(m2(0.5 * n), epsilon=0.7),
    "m2 rank-free sigma": lambda n: p.sigma(m2(), epsilon=n, delta=1e-5),
    "m2 rank-free rank": lambda n: p.rank(p.M2(dim=2048, noise_multiplier=0.5 * n), **GOAL),
    "m2 exact-rank1 epsilon": lambda n: p.epsilon(m2(0.5 * n), bound="exact-rank1", **AT),
    "m2 exact-rank1 sigma": lambda n: p.sigma(m2(), epsilon=n, delta=1e-5, bound="exact-rank1"),
    "m2 beta-tail epsilon": lambda n: p.epsilon(m2(0.5 * n, change_rank=10), bound="beta-tail", **AT),
    "m2 beta-tail sigma": lambda n: p.sigma(m2(change_rank=10), epsilon=n, delta=1e-5, bound="beta-tail"),
    "m2 mixture-rdp epsilon": lambda n: p.epsilon(m2(0.5 * n), bound="mixture-rdp", **AT),
    "wishart epsilon": lambda n: p.epsilon(wishart(misalignment=0.001 * n), **AT),
    "wishart delta": lambda n: p.delta(wishart(misalignment=0.001 * n), epsilon=1.0),
    "wishart misalignment": lambda n: p.misalignment(wishart(misalignment=None), epsilon=n, delta=1e-5),
    "wishart rank": lambda n: p.rank(wishart(rank=None, misalignment=8e-6 * n), **GOAL),
    "m1 epsilon": lambda n: p.epsilon(m1(n), **AT),
    "m1 sigma": lambda n: p.sigma(m1(), epsilon=n, delta=1e-5),
    "sketch exact-rank1 epsilon": lambda n: p.epsilon(p.Sketch(rank=16, gamma=1000 * n), bound="exact-rank1", **AT),
    "sketch-public epsilon": lambda n: p.epsilon(p.PublicSketch(rank=16, noise_multiplier=n), **AT),
    **{
        f"DP-SGD epsilon, T {steps:g}": lambda n, steps=steps, z=z: p.epsilon(gaussian(z * n), steps=steps, **DP_SGD)
        for steps, z in ((2, 1.0), (5, 1.0), (10, 1.0), (1000, 1.0), (10**9, 1000.0))
    },
    "DP-SGD sigma, T 1000": lambda n: p.sigma(gaussian(), epsilon=3.0 * n, steps=1000, **DP_SGD),
    **{
        f"m2 epsilon, T {steps:g}": lambda n, steps=steps, z=z: p.epsilon(m2(z * n), steps=steps, **DP_SGD)
        for steps, z in ((2, 0.15), (5, 0.15), (10, 0.15), (2000, 0.155974), (10**9, 150.0))
    },
    "m2 sigma, T 2000": lambda n: p.sigma(m2(), epsilon=n, **COMPOSED),
    "m2 rank, T 2000": lambda n: p.rank(p.M2(dim=2048, noise_multiplier=0.2 * n), epsilon=1.0, **COMPOSED),
    "m2 compare": lambda n: p.compare(m2(0.5 * n, **SHAPE), **AT),
    "m2 compare, T 2000": lambda n: p.compare(m2(0.155974 * n, **SHAPE), **COMPOSED),
    "wishart epsilon, T 10": lambda n: p.epsilon(wishart(misalignment=0.001 * n), steps=10, **AT),
    "100 phases": lambda n: phases(100, n),
    "1000 phases": lambda n: phases(1000, n),
    "100 m2 phases": lambda n: phases(100, n, "m2", noise_multiplier=0.2, **OF_M2),
    "worth, T 2000": lambda n: p.update_utility(m2(0.155974), epsilon=n, **COMPOSED),
    "m2 good-event sigma, T 2000": lambda n: p.sigma(
        m2(change_rank=10), epsilon=n, bound="good-event", split="even", **COMPOSED
    ),
    "100 layers, joint clip": lambda n: layers(100, n, "joint"),
    "100 layers, clip each": lambda n: layers(100, n, "per-layer"),
}

# limits of the calls in CPU seconds
LIMITS = {
    "wishart delta": 0.015,
    "wishart epsilon": 0.040,
    "gaussian: deltas, 1e5 rows": 0.1,
    "m2 rank-free: deltas, 1e5 rows": 1.0,
    "m2 rank-free: epsilons, 1e5 rows": 3.5,
    "sweep of 1e5 gaussian deltas": 1.2,
    "m2 epsilon, T 2000": 0.010,
    "m2 sigma, T 2000": 0.200,
    "m2 compare, T 2000": 1.0,
    "1000 phases": 5.0,
    "1000 layers, joint clip": 10.0,
    "1000 layers, clip each": 3.0,
}


def rows(count, n):
    """Evaluate ``count n`` epsilons of M2 in one array query."""
    return columns("epsilons", "m2", round(count * n), **OF_M2)


def columns(quantity, mechanism, count, **settings):
    """Evaluate ``count`` rows of one mechanism in one array query.

    The rows differ in noise, or for wishart in misalignment.
    """
    import numpy as np

    name, value = ("misalignment", 0.001) if mechanism == "wishart" else ("noise_multiplier", 0.5)
    if mechanism == "sketch":
        name, value = "gamma", 1000.0
    varied = {name: np.linspace(value, 2.0 * value, count)}
    target = AT if quantity == "epsilons" else {"epsilon": 0.7}
    return getattr(p, quantity)(mechanism, **target, **varied, **settings)


OF_M2 = {"dim": 2048, "rank": 16}
# bounds that are evaluated by array queries
COLUMNS = {
    "gaussian": ("gaussian", {}),
    "m2 rank-free": ("m2", OF_M2),
    "m2 exact-rank1": ("m2", {**OF_M2, "bound": "exact-rank1"}),
    "m2 beta-tail": ("m2", {**OF_M2, "bound": "beta-tail", "change_rank": 10}),
    "wishart exact": ("wishart", OF_M2),
    "m1 known-projection": ("m1", {"dim": 2048, "rank": 512}),
    "sketch exact-rank1": ("sketch", {"rank": 16, "bound": "exact-rank1"}),
    "sketch-public": ("sketch-public", {"rank": 16}),
}

for name, (mechanism, settings) in COLUMNS.items():
    many = 10**5 if mechanism in ("gaussian", "m2", "sketch-public") else 300  # those with kernels; others row by row
    for quantity in ("deltas", "epsilons"):
        label = f"{name}: {quantity}, {many:g} rows".replace("e+0", "e").replace("100000", "1e5")
        WARM[label] = lambda n, q=quantity, m=mechanism, s=settings, k=many: columns(q, m, round(k * n), **s)
WARM["m2 rank-free: epsilons, 400 rows"] = lambda n: columns("epsilons", "m2", round(400 * n), **OF_M2)


def sweep(query, count, n):
    """Run a sweep over ``count`` Gaussian releases, from the grid to the table."""
    from privproj.contrib.sweep.sweep import grid_from, run_sweep

    targets = [0.1 * i for i in range(1, 11)] if query == "delta" else [10.0**-i for i in range(1, 11)]
    noises = [n * (0.5 + 1e-4 * i) for i in range(count // 10)]
    axes = {"noise_multiplier": noises, "epsilon" if query == "delta" else "delta": targets}
    with tempfile.TemporaryDirectory() as folder:
        return run_sweep(grid_from({"query": query, "mechanism": "gaussian", "grid": axes}), Path(folder) / "out.csv")


WARM |= {f"sweep of 1e5 gaussian {query}s": partial(sweep, query, 10**5) for query in ("delta", "epsilon")}


def phases(count, n, mechanism="gaussian", noise_multiplier=1.0, **more):
    """Compute epsilon of a run of ``count`` different phases."""
    from privproj.io.run_file import from_data

    noises = [n * noise_multiplier * (1.0 + 0.5 * i / count) for i in range(count)]
    run = {"sampling_rate": 0.01, "steps": 10}
    listed = [{"mechanism": mechanism, "noise_multiplier": z, **more, **run} for z in noises]
    return from_data({"phase": listed}).epsilon(delta=1e-5)


def layers(count, n, clipping):
    """Compute epsilon of a release of ``count`` layers of different shapes."""
    shapes = tuple(p.Layer(dim=1000 + i, rank=16) for i in range(count))
    return p.epsilon(p.M2(layers=shapes, clipping=clipping, noise_multiplier=0.5 * n), delta=1e-5)


def dp_sgd(steps, n):
    """Compute epsilon of DP-SGD, with noise that keeps epsilon near 1 for any number of steps."""
    return p.epsilon(gaussian(n * max(1.0, (steps / 1000.0) ** 0.5)), steps=steps, **DP_SGD)


# tasks of a variable size, with the sizes, to measure the growth of time and memory
GROWTH = {
    "DP-SGD, steps": ((10, 10**3, 10**5, 10**7, 10**9), dp_sgd),
    "distinct phases": ((10, 30, 100, 300, 1000), phases),
    "distinct layers, joint clip": ((10, 30, 100, 300, 1000), partial(layers, clipping="joint")),
    "distinct layers, clip each": ((10, 30, 100, 300, 1000), partial(layers, clipping="per-layer")),
    "rows of m2 rank-free epsilons": ((10**3, 10**4, 10**5), rows),
}


def checks():
    """Write a file of 200 entries for ``privproj check``, and return its path."""
    bounded = 'query = "epsilon"\nmechanism = "m2"\nbound = "gaussian"\ndim = 768\nrank = 8\n'
    run = "steps = 100\nsampling_rate = 0.01"
    kinds = (
        'query = "epsilon"\nmechanism = "gaussian"\nnoise_multiplier = {z}\ndelta = 1e-5',
        'query = "epsilon"\nmechanism = "m2"\ndim = 2048\nrank = 16\nnoise_multiplier = {z}\ndelta = 1e-5',
        'query = "delta"\nmechanism = "m2"\ndim = 768\nrank = 8\nnoise_multiplier = {z}\nepsilon = 1',
        'query = "epsilon"\nmechanism = "gaussian"\nnoise_multiplier = {z}\ndelta = 1e-5\n' + run,
        bounded + "noise_multiplier = {z}\ndelta = 1e-6",
    )
    entries = [
        f'[[bound]]\nname = "{i}"\n{kinds[i % len(kinds)].format(z=1 + i / 100)}\nat_most = 1000\n' for i in range(200)
    ]
    handle, path = tempfile.mkstemp(suffix=".toml")
    os.write(handle, "\n".join(entries).encode())
    os.close(handle)
    return path
