"""The truth of a question, as an enclosure of delta at an epsilon.

``lower(q, eps)``: no mechanism of the question has a smaller worst case than this; every bound must be at least that.
``named(q, eps)``: the value of the bound that was named, by its printed formula; an answer far above it is useless.
Both are ``(lo, hi)`` with the judge's own error in them, or None: not judged.
"""

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from tests.harness import compose
from tests.harness import pairs as laws

SPLINE = 1e-4
"""Relative error of a composed delta from interpolated tails (these are right to 5e-6)."""


DENSE = 4000


def truth(asked, eps, claimed):
    """``lo`` below the worst case of the mechanism, ``hi`` above the bound's own value; None for unknown."""
    try:
        low = lower(asked, eps, claimed)
        high = named(asked, eps, claimed)
    except (MemoryError, FloatingPointError, OverflowError, ZeroDivisionError):
        return None, None
    return (None if low is None else float(low[0])), (None if high is None else float(high[1]))


def run_of(asked):
    """``(steps, rate, sampling)``; a group is one unit that is sampled with ``1 - (1-q)^K``."""
    rate = asked.run.get("sampling_rate", 1.0)
    group = asked.run.get("group_size", 1)
    if group > 1 and rate < 1.0:
        rate = -math.expm1(group * math.log1p(-rate))
    return asked.run.get("steps", 1), rate, asked.run.get("sampling") or "poisson"


def shift(asked):
    """``mu = K/z``."""
    return asked.run.get("group_size", 1) / asked.parameters["noise_multiplier"]


def count(asked):
    """``c = K/(2 S)`` of the count of a clip that adapts, twice that where a record is replaced; 0 without one."""
    replaced = asked.run.get("relation") == "replace" or asked.run.get("sampling") == "fixed"
    moved = asked.run.get("group_size", 1) * (1.0 if replaced else 0.5)
    return moved / asked.parameters.get("adaptive_clipping_sigma", math.inf)


def joint_shift(asked):
    """``sqrt(mu^2 + c^2)``: the sum and the count together, where nothing is projected."""
    return math.hypot(shift(asked), count(asked))


def with_count(pair, c):
    """The pair of the joint release: given the projection its shift is ``sqrt(s^2 + c^2)``."""
    return laws.Shifts(np.hypot(pair.s, c), pair.w, pair.c, pair.rough) if c else pair


def of_run(pair, asked, eps, claimed):
    """``(lo, hi)`` of the run of a symmetric pair: the larger of both orders, each composed with itself."""
    steps, rate, sampling = run_of(asked)
    if rate == 1.0 and isinstance(pair, laws.Shifts) and len(pair.s) == 1:
        pair, steps = laws.gaussian(float(pair.s[0]) * math.sqrt(steps)), 1
    if steps == 1:
        return one(pair, rate, sampling, eps)
    return many(pair, steps, rate, sampling, eps, claimed)


def one(pair, rate, sampling, eps):
    """One release: ``q delta_0(ln(1 + (e^eps - 1)/q))``, and the add order, which is never larger at ``eps >= 0``."""
    inner = math.log1p(math.expm1(min(eps, 690.0)) / rate) if rate < 1.0 else eps
    value, error = pair.delta(inner)
    slope = 1e-15 * (1.0 + inner) * 2.0 * value if rate < 1.0 else 0.0
    return rate * max(value - error - slope, 0.0), rate * (value + error + slope)


def many(pair, steps, rate, sampling, eps, claimed):
    """Composed on lattices."""
    smooth = pair if isinstance(pair, laws.Laplace | laws.Profiled) or single_shift(pair) else splined(pair)
    if rate == 1.0:
        orders = [smooth]
    elif sampling == "fixed":
        orders = [laws.Fixed(smooth, rate)]
    else:
        orders = [laws.Remove(smooth, rate)]
        orders.append(laws.Swapped(orders[0]))
    found = [compose.composed(order, steps, eps, claimed) for order in orders]
    # All releases leak at least what one does.
    first = 0.0 if isinstance(pair, laws.Profiled) else one(pair, rate, sampling, eps)[0]
    rough = 0.0 if smooth is pair else laws.GATHERED if dense(pair) else SPLINE
    if any(f is None for f in found):
        known = [f[0] for f in found if f is not None]
        return (max(max(known) * (1 - rough), first), math.inf) if known else None
    return max(max(f[0] for f in found) * (1 - rough), first), max(f[1] for f in found) * (1 + rough)


def dense(pair):
    """True for a law on so many points that neighbours are joined before it is interpolated."""
    return isinstance(pair, laws.Shifts) and len(pair.s) > DENSE


def single_shift(pair):
    return isinstance(pair, laws.Shifts) and len(pair.s) == 1


@lru_cache(maxsize=8)
def splined(pair):
    if isinstance(pair, laws.Wishart):
        return laws.Splined(laws.Wishart(pair.d, pair.r, pair.m, points=1500), knots=160)
    if dense(pair):
        energy, weight = laws.gathered(pair.s**2, pair.w)
        return laws.Splined(laws.Shifts(np.sqrt(energy), weight))
    return laws.Splined(pair, knots=1000)


# --- laws of the mechanisms -----------------------------------------------------------------------


@lru_cache(maxsize=64)
def rank_one(name, values):
    """The pair of a change of rank one."""
    given = dict(values)
    mu = given["mu"]
    if name == "gaussian":
        return laws.gaussian(mu)
    if name == "laplace":
        return laws.Laplace(mu)
    if name == "sketch-public":
        return laws.sketched(given["rank"], mu)
    if name == "jl-clip":
        return laws.probed(given["probes"], mu)
    if name == "m1":
        return laws.m1_rank_one(given["dim"], given["rank"], mu)
    return laws.m2_rank_one(given["dim"], given["rank"], mu)


def parts_of(asked):
    """``(d, r, count, share)`` of every layer of an M2 release."""
    given = asked.parameters
    if "layers" not in given:
        return [(given["dim"], given["rank"], 1, 1.0)]
    found = [tuple(int(x) for x in text.partition("@")[0].split("x")) for text in given["layers"]]
    total = sum(count for _, _, count in found)
    return [(d, r, n, 1.0 / total) for d, r, n in found]


def pairs_of(asked):
    """Pairs that neighbours of the mechanism can make; the worst case is at least each."""
    given, name = asked.parameters, asked.mechanism
    if name == "m2":
        return m2_pairs(asked)
    if name == "m1" and asked.bound in ("secret-projection", "residual", "column-exact", "column"):
        return None
    keys = {key: given[key] for key in ("dim", "rank", "probes") if key in given}
    return [rank_one(name, tuple({**keys, "mu": joint_shift(asked)}.items()))]


def m2_pairs(asked):
    """One direction of one layer (joint clip), or one direction of every layer at its share; a flat change too."""
    mu, parts = shift(asked), parts_of(asked)
    if asked.parameters.get("clipping") == "per-layer":
        each = [(d, r, share) for d, r, n, share in parts for _ in range(n)]
        return [laws.m2_layers(each, mu)] if len(each) <= 40 else None
    found = [rank_one("m2", (("dim", d), ("rank", r), ("mu", mu))) for d, r, _, _ in parts]
    if asked.bound in ("rank-free", "gaussian"):
        found += [laws.gaussian(mu * math.sqrt(r / d)) for d, r, _, _ in parts]
    return [with_count(pair, count(asked)) for pair in found]


def lower(asked, eps, claimed):
    """What no sound bound can go below."""
    if asked.mechanism == "wishart":
        return wishart_lower(asked, eps, claimed)
    if asked.mechanism == "sketch":
        return sketch_one(asked, eps)
    if asked.mechanism == "mixing":
        return mixing_one(asked, eps)
    if asked.mechanism == "m1" and asked.bound in ("secret-projection", "residual", "column-exact", "column"):
        return column_lower(asked, eps, claimed)
    pairs = pairs_of(asked)
    if pairs is None:
        return None
    rate = run_of(asked)[1]
    if asked.run.get("group_size", 1) > 1 and rate < 1.0:
        return group_lower(asked, eps, claimed)
    found = [of_run(pair, asked, eps, claimed) for pair in pairs]
    found = [f for f in found if f is not None]
    return (max(f[0] for f in found), max(f[1] for f in found)) if found else None


def group_lower(asked, eps, claimed):
    """A group of which one record is always sampled alone is no larger than the group: one record's own run."""
    alone = type(asked)(**{**asked.plain(), "run": {k: v for k, v in asked.run.items() if k != "group_size"}})
    return lower(alone, eps, claimed)


@lru_cache(maxsize=16)
def wishart_pair(dim, rank, m, ratio):
    return laws.Wishart(dim, rank, m, ratio)


def wishart_lower(asked, eps, claimed, shape=None):
    """The pair at the promised misalignment; for unequal norms the largest of several, and of both ratios."""
    given = asked.parameters
    dim, rank, m, ratio = shape or (given["dim"], given["rank"], given["misalignment"], given.get("norm_ratio", 1.0))
    if ratio == 1.0:
        if dim == 1:
            return 0.0, 0.0
        return of_run(wishart_pair(dim, rank, m, 1.0), asked, eps, claimed)
    if run_of(asked) != (1, 1.0, "poisson"):
        return None
    found = [wishart_pair(dim, rank, x, k).delta(eps) for k in (ratio, 1 / ratio) for x in ratios(m, dim)]
    return max(value - error for value, error in found), max(value + error for value, error in found)


def ratios(m, dim):
    """Misalignments from 0 to the promised one."""
    return [0.0, m] if dim == 1 else [0.0, *(m * np.geomspace(1e-4, 1.0, 11))]


def column_lower(asked, eps, claimed):
    """M1 with promises: the secret vector, or one column's residual and correlated part where one of them is absent."""
    given = asked.parameters
    dim, rank, z = given["dim"], given["rank"], given["noise_multiplier"]
    if asked.bound == "secret-projection":
        if given["misalignment"] > 1.0:
            return secret_far(asked, eps, claimed)
        return of_run(laws.m1_secret(rank, given["misalignment"], z), asked, eps, claimed)
    k, ratio = given["span_dim"], given.get("other_residual_norm", 1.0) / given.get("residual_norm", 1.0)
    shape = dim - k, rank - k, given["residual_misalignment"], ratio
    residual = rank > k and (dim - k > 1 or ratio != 1.0)
    if k == 0:
        return wishart_lower(asked, eps, claimed, shape) if residual else (0.0, 0.0)
    ends = (rank, dim - 1) if rank <= k else (k, dim + rank - k - 1)
    correlated = laws.m1_rank_one(dim, rank, 1.0 / z, density=2, ends=ends)
    if not residual:
        return of_run(correlated, asked, eps, claimed)
    if run_of(asked)[:2] != (1, 1.0) or ratio != 1.0:
        return None
    return both_parts(wishart_pair(*shape), correlated, eps)


def secret_far(asked, eps, claimed):
    """Vectors at most ``sqrt 2`` apart are allowed too, with the noise that was promised."""
    given = asked.parameters
    z = given["noise_multiplier"] * math.sqrt(given["misalignment"])
    return of_run(laws.m1_secret(given["rank"], 1.0, z), asked, eps, claimed)


def both_parts(residual, correlated, eps):
    """``delta = E_L1 delta_2(eps - L_1)`` with ``L_1`` of the residual, in 150 cells.

    Cells are joined to one loss that keeps both masses, a merge: a lower bound.
    """
    smooth = laws.Splined(laws.Wishart(residual.d, residual.r, residual.m, points=1500), knots=120)
    top, low = compose.end(smooth, 1e-14, 1.0), compose.end(smooth, 1e-14, -1.0)
    x = np.linspace(-low, top, 150)
    p, _, q, _ = smooth.tails(x)
    mass_p, mass_q = np.maximum(p[:-1] - p[1:], 0), np.maximum(q[:-1] - q[1:], 0)
    keep = (mass_p > 1e-15) & (mass_q > 0)
    loss = np.log(mass_p[keep] / mass_q[keep])
    at = eps - loss
    values = np.array([two_sided_profile(correlated, a) for a in at])
    return max(0.0, float(mass_p[keep] @ values) * (1 - 1e-4) - 1e-12), 1.0


def two_sided_profile(pair, eps):
    """``delta(-e) = 1 - e^-e + e^-e delta(e)``."""
    value = pair.delta(abs(eps))[0]
    return value if eps >= 0 else -math.expm1(eps) + math.exp(eps) * value


def sketch_one(asked, eps):
    """One eigenvalue ``nu = 1/Gamma``, ``T r`` independent columns: two chi-square tails, both orders.

    The order "present, absent" has ``L = nu X/2 - R ln(1+nu)/2 > eps`` for ``X > x``, the other one ``X < y``.
    """
    steps, rate, _ = run_of(asked)
    given = asked.parameters
    if rate < 1.0 or "gamma" not in given:
        return None
    half = 0.5 * given["rank"] * steps
    nu = 1.0 / given["gamma"]
    grown, k = half * math.log1p(nu), nu / (1 + nu)
    up, down = (grown + eps) / nu, (grown - eps) / k
    rise = gamma_gap(half, up, nu)
    fall = gamma_gap_below(half, down, k) if down > 0 else (0.0, 0.0)
    return max(rise[0], fall[0]), max(rise[1], fall[1])


def mixing_one(asked, eps):
    """One record on empty data in one dimension, present against absent: sums below and above over cells of ``u``.

    What is summed increases with ``u``: the ratio of the normal densities does, and ``nu = 1/(G - Z u)``.
    """
    given = asked.parameters
    if run_of(asked)[0] > 1:
        return None
    half, noise, end = 0.5 * given["rank"], given["eigen_noise"], given["gamma"] / given["eigen_noise"]
    u = np.linspace(-9.0, min(end * (1 - 1e-9), 9.0 + 1 / noise), 20_001)
    left = eps - (u - 0.5 / noise) / noise
    nu = 1.0 / (given["gamma"] - noise * u)
    edge = np.maximum(half * np.log1p(nu) + left, 0.0) / nu
    kept = special.gammaincc(half, edge) - np.exp(left) * special.gammaincc(half, (1 + nu) * edge)
    mass = np.diff(special.ndtr(u - 1 / noise))
    beyond = special.ndtr(1 / noise - u[-1])
    low, high = np.sum(mass * kept[:-1]), np.sum(mass * kept[1:]) + beyond + 1e-18
    return max(float(low) * (1 - 1e-9) - 1e-12, 0.0), float(high) * (1 + 1e-9) + 1e-12


def gamma_gap(half, edge, nu):
    """``E (1 - e^(-nu (U - edge)))_+``, ``U ~ Gamma(half)``, from tails; the error is their rounding."""
    first = special.gammaincc(half, edge)
    second = first_scaled(half, edge, nu)
    return max(first - second - 1e-11 * first, 0.0), first - second + 1e-11 * first


def first_scaled(half, edge, nu):
    """``E e^(-nu (U - edge)); U > edge = e^(nu edge) (1 + nu)^-half Q(half, (1 + nu) edge)``."""
    tail = special.gammaincc(half, (1 + nu) * edge)
    return math.exp(nu * edge - half * math.log1p(nu) + math.log(tail)) if tail > 0 else 0.0


def gamma_gap_below(half, edge, k):
    """``E (1 - e^(-k (edge - U)))_+ = P(half, edge) - e^(-k edge) (1 - k)^-half P(half, (1 - k) edge)``."""
    first = special.gammainc(half, edge)
    tail = special.gammainc(half, (1 - k) * edge)
    second = math.exp(-k * edge - half * math.log1p(-k) + math.log(tail)) if tail > 0 else 0.0
    return max(first - second - 1e-11 * first, 0.0), first - second + 1e-11 * first


# --- the bound that was named ---------------------------------------------------------------------


def named(asked, eps, claimed):
    """The value of the named bound where there is an independent way to it."""
    known = (asked.mechanism, asked.bound)
    exact = {("gaussian", "analytic"), ("laplace", "exact"), ("m1", "known-projection-rank1"),
             ("sketch", "exact-rank1"),
             ("sketch-public", "exact-rank1"), ("jl-clip", "exact"), ("wishart", "exact"),
             ("m1", "residual")}  # fmt: skip
    if known in exact or (known == ("m1", "secret-projection") and asked.parameters["misalignment"] <= 1.0):
        return (
            lower(asked, eps, claimed) if asked.run.get("group_size", 1) == 1 else of_named_group(asked, eps, claimed)
        )
    if known == ("m2", "exact-rank1"):
        return lower(asked, eps, claimed)
    if known == ("m2", "gaussian"):
        return of_run(laws.gaussian(joint_shift(asked)), asked, eps, claimed)
    if asked.bound in ("rank-free", "known-projection", "any-records"):
        return majorant(asked, eps, claimed)
    return RULES[known](asked, eps) if known in RULES else None


def of_named_group(asked, eps, claimed):
    """All of a group at once, whenever one of it is sampled."""
    return of_run(pairs_of(asked)[0], asked, eps, claimed)


def majorant(asked, eps, claimed):
    """``min_p E g_p`` at one epsilon, or composed from 120 of them."""
    if "layers" in asked.parameters:
        return None
    pair = pairs_of(asked)[0]
    steps, rate, sampling = run_of(asked)
    if len(pair.s) > 30000:
        return None
    if steps == 1:
        inner = math.log1p(math.expm1(min(eps, 690.0)) / rate) if rate < 1.0 else eps
        value = least_majorant(pair, inner)
        return rate * value * (1 - 1e-6), rate * value * (1 + 1e-6)
    profile = profiled(pair)
    return many(profile, steps, rate, sampling, eps, claimed)


@lru_cache(maxsize=4)
def profiled(pair):
    """Its profile on the positive half line, as a pair."""
    light = laws.Shifts(pair.s[pair.w > 1e-40], pair.w[pair.w > 1e-40])
    return laws.Profiled(lambda e: least_majorant(light, e), min(laws.far(light, 1e-60), 700.0), knots=160)


def least_majorant(pair, eps):
    """``g_p(x) = max(h(x), l_p(x))`` below ``x0 = 2 (sqrt(1+eps^2) - 1)``, ``l_p(x)`` above; least over ``p``."""
    x = pair.s**2
    h = laws.gain(eps, pair.s)
    x0 = 2 * eps * eps / (1 + math.sqrt(1 + eps * eps))

    def mean(log_p):
        p = math.exp(log_p)
        root = math.sqrt(p)
        slope = math.exp(-0.5 * (root / 2 - eps / root) ** 2) / math.sqrt(2 * math.pi) / (2 * root)
        line = float(laws.gain(eps, root)) + slope * (x - p)
        return float(np.where(x <= x0, np.maximum(h, line), line) @ pair.w)

    low = math.log(max(x0, 1e-300)) if x0 > 0 else math.log(x.min())
    high = max(low + 1e-9, math.log(x[pair.w > 1e-18].max()))
    grid = np.linspace(low, high, 40)
    values = [mean(g) for g in grid]
    i = int(np.argmin(values))
    ends = grid[max(i - 1, 0)], grid[min(i + 1, 39)]
    best = optimize.minimize_scalar(mean, bounds=ends, method="bounded", options={"xatol": 1e-9})
    return max(min(values[i], float(best.fun)), 0.0)


def renyi(divergence, eps, orders):
    """The least delta of ``eps = D + ln(1/(a delta))/(a-1) + ln(1 - 1/a)`` over the orders."""
    with np.errstate(all="ignore"):
        logs = (orders - 1) * (divergence(orders) + np.log1p(-1 / orders) - eps) - np.log(orders)
    best = math.exp(min(0.0, float(np.nanmin(logs))))
    return best, best * 1.001


ORDERS = 1.0 + np.geomspace(1e-5, 1e7, 20000)


def gaussian_rdp(asked, eps):
    """``D = T a mu^2/2``."""
    steps, rate, _ = run_of(asked)
    return renyi(lambda a: steps * a * joint_shift(asked) ** 2 / 2, eps, ORDERS) if rate == 1.0 else None


def gaussian_two_sided(asked, eps):
    """``Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)``."""
    steps, rate, _ = run_of(asked)
    if (steps, rate) != (1, 1.0):
        return None
    mu = joint_shift(asked)
    value = float(special.ndtr(-eps / mu + mu / 2) + special.ndtr(-eps / mu - mu / 2))
    return value * (1 - 1e-10), min(1.0, value * (1 + 1e-10))


def gaussian_gdp(asked, eps):
    """``mu sqrt T``-GDP."""
    steps, rate, _ = run_of(asked)
    return one(laws.gaussian(joint_shift(asked) * math.sqrt(steps)), 1.0, "", eps) if rate == 1.0 else None


def classical(constant):
    """``delta = constant e^(-(eps z)^2/2)`` for ``0 < eps < 1``."""

    def value(asked, eps):
        if run_of(asked)[:2] != (1, 1.0) or not 0 < eps < 1:
            return None
        found = constant * math.exp(-0.5 * (eps / joint_shift(asked)) ** 2)
        return found * (1 - 1e-10), found * (1 + 1e-10)

    return value


def beta_tail(sharp):
    """``min over tau of T(eps; mu sqrt tau)`` (or the exact profile) ``+ k P(Beta(r/2, (d-r)/2) > tau)``."""

    def value(asked, eps):
        if run_of(asked)[:2] != (1, 1.0) or "layers" in asked.parameters:
            return None
        ((d, r, _, _),) = parts_of(asked)
        k = asked.parameters["change_rank"] * (2 if asked.run.get("relation") == "replace" else 1)
        k, mu = min(k, d), shift(asked)
        if d == r:
            return None
        taus = special.expit(np.linspace(-40, 40, 40001))
        shifts = mu * np.sqrt(taus)
        head = (
            laws.gain(eps, shifts)
            if sharp
            else special.ndtr(-eps / shifts + shifts / 2) + special.ndtr(-eps / shifts - shifts / 2)
        )
        total = float(np.min(head + k * special.betaincc(r / 2, (d - r) / 2, taus)))
        return 0.0, min(total, 1.0) * 1.01

    return value


RULES = {
    ("gaussian", "rdp"): gaussian_rdp,
    ("gaussian", "two-sided"): gaussian_two_sided,
    ("gaussian", "gdp"): gaussian_gdp,
    ("gaussian", "classical"): classical(1.25),
    ("gaussian", "classical-2"): classical(2.0),
    ("m2", "beta-tail"): beta_tail(False),
    ("m2", "beta-tail-sharp"): beta_tail(True),
}
