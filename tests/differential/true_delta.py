"""Independent enclosure of delta at an epsilon for a query, without code of the package.

``lower(query, eps, claimed)`` encloses a delta that some pair of neighboring datasets reaches, so every bound must be
at least its lower end. ``named(query, eps, claimed)`` encloses the value of the named bound from its printed formula.
Both return ``(low, high)`` with their own numerical error, or None where no independent value is known.
"""

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from tests.differential import pair_composition, pairs
from tests.differential.features import feature_dict, feature_items

MOST_ERROR = 1e-2  # relative; with a larger estimated error an integral has not converged, and has no upper end
SPLINE = 1e-4  # relative error of a composed delta from interpolated tails (which have 5e-6)
FEATURE_PAIRS = feature_dict("PAIRS")  # mechanism of an optional feature -> function from parameters and mu to a pair
FEATURE_LOWER = feature_dict("LOWER")  # mechanism of an optional feature -> its own form of lower()
DENSE = 4000  # points of a distribution; with more of them neighboring points are joined before interpolation


def enclosure(query, eps, claimed):
    """Return a lower bound on the true delta and an upper bound on the named bound, each None where unknown."""
    try:
        low = lower(query, eps, claimed)
        high = named(query, eps, claimed)
    except (MemoryError, FloatingPointError, OverflowError, ZeroDivisionError):
        return None, None
    return (None if low is None else float(low[0])), (None if high is None else float(high[1]))


def run_of(query):
    """Return ``(steps, rate, sampling)``; a group of ``K`` records is sampled at rate ``1 - (1-q)^K``."""
    rate = query.run.get("sampling_rate", 1.0)
    group = query.run.get("group_size", 1)
    if group > 1 and rate < 1.0:
        rate = -math.expm1(group * math.log1p(-rate))
    return query.run.get("steps", 1), rate, query.run.get("sampling") or "poisson"


def shift(query):
    """Return ``mu = K/z``."""
    return query.run.get("group_size", 1) / query.parameters["noise_multiplier"]


def count(query):
    """Return ``c = K/(2 S)`` for the count of adaptive clipping (``K/S`` under replace), or 0 without one."""
    replaced = query.run.get("relation") == "replace" or query.run.get("sampling") == "fixed"
    moved = query.run.get("group_size", 1) * (1.0 if replaced else 0.5)
    return moved / query.parameters.get("adaptive_clipping_sigma", math.inf)


def joint_shift(query):
    """Return ``sqrt(mu^2 + c^2)``, the sensitivity of sum and count together without a projection."""
    return math.hypot(shift(query), count(query))


def with_count(pair, c):
    """Return the pair of sum and count: given the projection, its sensitivity is ``sqrt(s^2 + c^2)``."""
    return pairs.Shifts(np.hypot(pair.s, c), pair.w, pair.c, pair.rough) if c else pair


def of_run(pair, query, eps, claimed):
    """Enclose delta for the run of a symmetric pair: the larger one of the add and remove directions."""
    steps, rate, sampling = run_of(query)
    if rate == 1.0 and isinstance(pair, pairs.Shifts) and len(pair.s) == 1:
        pair, steps = pairs.gaussian(float(pair.s[0]) * math.sqrt(steps)), 1
    if steps == 1:
        return one(pair, rate, sampling, eps)
    return many(pair, steps, rate, sampling, eps, claimed)


def one(pair, rate, sampling, eps):
    """Enclose delta for one step, ``q delta_0(ln(1 + (e^eps - 1)/q))``.

    The add direction is not larger for ``eps >= 0``.
    """
    inner = math.log1p(math.expm1(min(eps, 690.0)) / rate) if rate < 1.0 else eps
    value, error = pair.delta(inner)
    slope = 1e-15 * (1.0 + inner) * 2.0 * value if rate < 1.0 else 0.0
    high = value + error + slope if error <= MOST_ERROR * value else math.inf
    return rate * max(value - error - slope, 0.0), rate * high


def many(pair, steps, rate, sampling, eps, claimed):
    """Enclose delta for several steps, composed on discretization grids."""
    smooth = pair if isinstance(pair, pairs.Laplace | pairs.Profiled) or single_shift(pair) else splined(pair)
    if rate == 1.0:
        orders = [smooth]
    elif sampling == "fixed":
        orders = [pairs.Fixed(smooth, rate)]
    else:
        orders = [pairs.Remove(smooth, rate)]
        orders.append(pairs.Swapped(orders[0]))
    found = [pair_composition.composed(order, steps, eps, claimed) for order in orders]
    # Several steps have at least the delta of one.
    first = 0.0 if isinstance(pair, pairs.Profiled) else one(pair, rate, sampling, eps)[0]
    rough = 0.0 if smooth is pair else pairs.GATHERED if dense(pair) else SPLINE
    if any(f is None for f in found):
        known = [f[0] for f in found if f is not None]
        return (max(max(known) * (1 - rough), first), math.inf) if known else None
    return max(max(f[0] for f in found) * (1 - rough), first), max(f[1] for f in found) * (1 + rough)


def dense(pair):
    """Return whether neighboring points of the distribution are joined before interpolation."""
    return isinstance(pair, pairs.Shifts) and len(pair.s) > DENSE


def single_shift(pair):
    return isinstance(pair, pairs.Shifts) and len(pair.s) == 1


@lru_cache(maxsize=8)
def splined(pair):
    if isinstance(pair, pairs.Wishart):
        return pairs.Splined(pairs.Wishart(pair.d, pair.r, pair.m, points=1500), knots=160)
    if dense(pair):
        energy, weight = pairs.gathered(pair.s**2, pair.w)
        return pairs.Splined(pairs.Shifts(np.sqrt(energy), weight))
    return pairs.Splined(pair, knots=1000)


# --- dominating pairs of the mechanisms -------------------------------------------------------------


@lru_cache(maxsize=64)
def rank_one(name, values):
    """Return the dominating pair of a difference of rank one."""
    given = dict(values)
    mu = given["mu"]
    if name == "gaussian":
        return pairs.gaussian(mu)
    if name == "laplace":
        return pairs.Laplace(mu)
    if name == "sketch-public":
        return pairs.sketched(given["rank"], mu)
    if name in FEATURE_PAIRS:
        return FEATURE_PAIRS[name](given, mu)
    if name == "m1":
        return pairs.m1_rank_one(given["dim"], given["rank"], mu)
    return pairs.m2_rank_one(given["dim"], given["rank"], mu)


def parts_of(query):
    """Return ``(d, r, count, share)`` of every layer of an M2 release."""
    given = query.parameters
    if "layers" not in given:
        return [(given["dim"], given["rank"], 1, 1.0)]
    found = [tuple(int(x) for x in text.partition("@")[0].split("x")) for text in given["layers"]]
    total = sum(count for _, _, count in found)
    return [(d, r, n, 1.0 / total) for d, r, n in found]


def pairs_of(query):
    """Return pairs that neighboring datasets produce; the worst case is at least each of them."""
    given, name = query.parameters, query.mechanism
    if name == "m2":
        return m2_pairs(query)
    if name == "m1" and query.bound in ("secret-projection", "residual", "column-exact", "column"):
        return None
    if query.bound == "secret-probes":
        return None  # PAIRS has public probes; the tests of jl-clip integrate and simulate secret ones
    keys = {key: given[key] for key in given if isinstance(given[key], int)}
    return [rank_one(name, tuple({**keys, "mu": joint_shift(query)}.items()))]


def m2_pairs(query):
    """Return rank-one differences of one layer (joint clipping) or of every layer (per layer), and a flat one."""
    mu, parts = shift(query), parts_of(query)
    if query.parameters.get("clipping") == "per-layer":
        each = [(d, r, share) for d, r, n, share in parts for _ in range(n)]
        return [pairs.m2_layers(each, mu)] if len(each) <= 40 else None
    found = [rank_one("m2", (("dim", d), ("rank", r), ("mu", mu))) for d, r, _, _ in parts]
    if query.bound in ("rank-free", "gaussian"):
        found += [pairs.gaussian(mu * math.sqrt(r / d)) for d, r, _, _ in parts]
    return [with_count(pair, count(query)) for pair in found]


def lower(query, eps, claimed):
    """Enclose a delta that no sound bound can be below."""
    if query.mechanism == "wishart":
        return wishart_lower(query, eps, claimed)
    if query.mechanism == "sketch":
        return sketch_one(query, eps)
    if query.mechanism in FEATURE_LOWER:
        return FEATURE_LOWER[query.mechanism](query, eps)
    if query.mechanism == "m1" and query.bound in ("secret-projection", "residual", "column-exact", "column"):
        return column_lower(query, eps, claimed)
    candidates = pairs_of(query)
    if candidates is None:
        return None
    rate = run_of(query)[1]
    if query.run.get("group_size", 1) > 1 and rate < 1.0:
        return group_lower(query, eps, claimed)
    found = [of_run(pair, query, eps, claimed) for pair in candidates]
    found = [f for f in found if f is not None]
    return (max(f[0] for f in found), max(f[1] for f in found)) if found else None


def group_lower(query, eps, claimed):
    """Enclose delta for one record of a group, which is at most that of the group."""
    alone = type(query)(**{**query.plain(), "run": {k: v for k, v in query.run.items() if k != "group_size"}})
    return lower(alone, eps, claimed)


@lru_cache(maxsize=16)
def wishart_pair(dim, rank, m, ratio):
    return pairs.Wishart(dim, rank, m, ratio)


def wishart_lower(query, eps, claimed, shape=None):
    """Enclose delta at the assumed misalignment; for unequal norms, the maximum of several and of both ratios."""
    given = query.parameters
    dim, rank, m, ratio = shape or (given["dim"], given["rank"], given["misalignment"], given.get("norm_ratio", 1.0))
    if ratio == 1.0:
        if dim == 1:
            return 0.0, 0.0
        return of_run(wishart_pair(dim, rank, m, 1.0), query, eps, claimed)
    if run_of(query) != (1, 1.0, "poisson"):
        return None
    found = [wishart_pair(dim, rank, x, k).delta(eps) for k in (ratio, 1 / ratio) for x in ratios(m, dim)]
    return max(value - error for value, error in found), max(value + error for value, error in found)


def ratios(m, dim):
    """Return misalignments from 0 to the assumed one."""
    return [0.0, m] if dim == 1 else [0.0, *(m * np.geomspace(1e-4, 1.0, 11))]


def column_lower(query, eps, claimed):
    """Enclose delta for M1 under assumptions: a secret vector, or the residual and correlated parts of a column."""
    given = query.parameters
    dim, rank, z = given["dim"], given["rank"], given["noise_multiplier"]
    if query.bound == "secret-projection":
        if given["misalignment"] > 1.0:
            return secret_far(query, eps, claimed)
        return of_run(pairs.m1_secret(rank, given["misalignment"], z), query, eps, claimed)
    k, ratio = given["span_dim"], given.get("other_residual_norm", 1.0) / given.get("residual_norm", 1.0)
    shape = dim - k, rank - k, given["residual_misalignment"], ratio
    residual = rank > k and (dim - k > 1 or ratio != 1.0)
    if k == 0:
        return wishart_lower(query, eps, claimed, shape) if residual else (0.0, 0.0)
    ends = (rank, dim - 1) if rank <= k else (k, dim + rank - k - 1)
    correlated = pairs.m1_rank_one(dim, rank, 1.0 / z, density=2, ends=ends)
    if not residual:
        return of_run(correlated, query, eps, claimed)
    if run_of(query)[:2] != (1, 1.0) or ratio != 1.0:
        return None
    return both_parts(wishart_pair(*shape), correlated, eps)


def secret_far(query, eps, claimed):
    """Enclose delta for vectors ``sqrt 2`` apart, which the assumption allows too."""
    given = query.parameters
    z = given["noise_multiplier"] * math.sqrt(given["misalignment"])
    return of_run(pairs.m1_secret(given["rank"], 1.0, z), query, eps, claimed)


def both_parts(residual, correlated, eps):
    """Enclose ``delta = E_L1 delta_2(eps - L_1)`` with ``L_1`` of the residual, in 150 cells.

    Merging a cell to one loss with the same masses is post-processing, so the sum is a lower bound.
    """
    smooth = pairs.Splined(pairs.Wishart(residual.d, residual.r, residual.m, points=1500), knots=120)
    top, low = pair_composition.end(smooth, 1e-14, 1.0), pair_composition.end(smooth, 1e-14, -1.0)
    x = np.linspace(-low, top, 150)
    p, _, q, _ = smooth.tails(x)
    mass_p, mass_q = np.maximum(p[:-1] - p[1:], 0), np.maximum(q[:-1] - q[1:], 0)
    keep = (mass_p > 1e-15) & (mass_q > 0)
    loss = np.log(mass_p[keep] / mass_q[keep])
    at = eps - loss
    values = np.array([two_sided_profile(correlated, a) for a in at])
    return max(0.0, float(mass_p[keep] @ values) * (1 - 1e-4) - 1e-12), 1.0


def two_sided_profile(pair, eps):
    """Return delta at any epsilon, by ``delta(-e) = 1 - e^-e + e^-e delta(e)``."""
    value = pair.delta(abs(eps))[0]
    return value if eps >= 0 else -math.expm1(eps) + math.exp(eps) * value


def sketch_one(query, eps):
    """Enclose delta for one eigenvalue ``nu = 1/Gamma`` and ``T r`` independent columns: two chi-square tails.

    The remove direction has ``L = nu X/2 - R ln(1+nu)/2 > eps`` for ``X > x``, the add direction for ``X < y``.
    """
    steps, rate, _ = run_of(query)
    given = query.parameters
    if rate < 1.0 or "gamma" not in given:
        return None
    half = 0.5 * given["rank"] * steps
    nu = 1.0 / given["gamma"]
    grown, k = half * math.log1p(nu), nu / (1 + nu)
    up, down = (grown + eps) / nu, (grown - eps) / k
    rise = gamma_gap(half, up, nu)
    fall = gamma_gap_below(half, down, k) if down > 0 else (0.0, 0.0)
    return max(rise[0], fall[0]), max(rise[1], fall[1])


def gamma_gap(half, edge, nu):
    """Enclose ``E (1 - e^(-nu (U - edge)))_+`` for ``U ~ Gamma(half)``."""
    first = special.gammaincc(half, edge)
    second = first_scaled(half, edge, nu)
    return max(first - second - 1e-11 * first, 0.0), first - second + 1e-11 * first


def first_scaled(half, edge, nu):
    """Return ``E e^(-nu (U - edge)) 1[U > edge] = e^(nu edge) (1 + nu)^-half Q(half, (1 + nu) edge)``."""
    tail = special.gammaincc(half, (1 + nu) * edge)
    return math.exp(nu * edge - half * math.log1p(nu) + math.log(tail)) if tail > 0 else 0.0


def gamma_gap_below(half, edge, k):
    """Enclose ``E (1 - e^(-k (edge - U)))_+ = P(half, edge) - e^(-k edge) (1 - k)^-half P(half, (1 - k) edge)``."""
    first = special.gammainc(half, edge)
    tail = special.gammainc(half, (1 - k) * edge)
    second = math.exp(-k * edge - half * math.log1p(-k) + math.log(tail)) if tail > 0 else 0.0
    return max(first - second - 1e-11 * first, 0.0), first - second + 1e-11 * first


# --- the named bound --------------------------------------------------------------------------------


def named(query, eps, claimed):
    """Enclose the value of the named bound, or return None without an independent formula."""
    known = (query.mechanism, query.bound)
    exact = {("gaussian", "analytic"), ("laplace", "exact"), ("m1", "known-projection-rank1"),
             ("sketch", "exact-rank1"),
             ("sketch-public", "exact-rank1"), ("wishart", "exact"), ("m1", "residual"),
             *feature_items("EXACT")}  # fmt: skip
    if known in exact or (known == ("m1", "secret-projection") and query.parameters["misalignment"] <= 1.0):
        return (
            lower(query, eps, claimed) if query.run.get("group_size", 1) == 1 else of_named_group(query, eps, claimed)
        )
    if known == ("m2", "exact-rank1"):
        return lower(query, eps, claimed)
    if known == ("m2", "gaussian"):
        return of_run(pairs.gaussian(joint_shift(query)), query, eps, claimed)
    if query.bound in ("rank-free", "known-projection") or known in feature_items("MAJORANTS"):
        return majorant(query, eps, claimed)
    return RULES[known](query, eps) if known in RULES else None


def of_named_group(query, eps, claimed):
    """Enclose delta for a group that is sampled as one unit."""
    return of_run(pairs_of(query)[0], query, eps, claimed)


def majorant(query, eps, claimed):
    """Enclose the rank-free bound ``min_p E g_p``, composed from its profile for several steps."""
    if "layers" in query.parameters:
        return None
    pair = pairs_of(query)[0]
    steps, rate, sampling = run_of(query)
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
    """Return the pair whose profile is the rank-free bound."""
    light = pairs.Shifts(pair.s[pair.w > 1e-40], pair.w[pair.w > 1e-40])
    return pairs.Profiled(lambda e: least_majorant(light, e), min(pairs.far(light, 1e-60), 700.0), knots=160)


def least_majorant(pair, eps):
    """Return ``min_p E g_p``; ``g_p = max(h, l_p)`` below ``x0 = 2 (sqrt(1+eps^2) - 1)`` and ``l_p`` above."""
    x = pair.s**2
    h = pairs.gain(eps, pair.s)
    x0 = 2 * eps * eps / (1 + math.sqrt(1 + eps * eps))

    def mean(log_p):
        p = math.exp(log_p)
        root = math.sqrt(p)
        slope = math.exp(-0.5 * (root / 2 - eps / root) ** 2) / math.sqrt(2 * math.pi) / (2 * root)
        line = float(pairs.gain(eps, root)) + slope * (x - p)
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
    """Return the least delta of ``eps = D + ln(1/(a delta))/(a-1) + ln(1 - 1/a)`` over the orders ``a``."""
    with np.errstate(all="ignore"):
        logs = (orders - 1) * (divergence(orders) + np.log1p(-1 / orders) - eps) - np.log(orders)
    best = math.exp(min(0.0, float(np.nanmin(logs))))
    return best, best * 1.001


ORDERS = 1.0 + np.geomspace(1e-5, 1e7, 20000)


def gaussian_rdp(query, eps):
    """``D = T a mu^2/2``."""
    steps, rate, _ = run_of(query)
    return renyi(lambda a: steps * a * joint_shift(query) ** 2 / 2, eps, ORDERS) if rate == 1.0 else None


def gaussian_two_sided(query, eps):
    """``Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)``."""
    steps, rate, _ = run_of(query)
    if (steps, rate) != (1, 1.0):
        return None
    mu = joint_shift(query)
    value = float(special.ndtr(-eps / mu + mu / 2) + special.ndtr(-eps / mu - mu / 2))
    return value * (1 - 1e-10), min(1.0, value * (1 + 1e-10))


def gaussian_gdp(query, eps):
    """``mu sqrt T``-GDP."""
    steps, rate, _ = run_of(query)
    return one(pairs.gaussian(joint_shift(query) * math.sqrt(steps)), 1.0, "", eps) if rate == 1.0 else None


def classical(constant):
    """``delta = constant e^(-(eps z)^2/2)`` for ``0 < eps < 1``."""

    def value(query, eps):
        if run_of(query)[:2] != (1, 1.0) or not 0 < eps < 1:
            return None
        found = constant * math.exp(-0.5 * (eps / joint_shift(query)) ** 2)
        return found * (1 - 1e-10), found * (1 + 1e-10)

    return value


def beta_tail(sharp):
    """``min over tau of T(eps; mu sqrt tau)`` (or the exact profile) ``+ k P(Beta(r/2, (d-r)/2) > tau)``."""

    def value(query, eps):
        if run_of(query)[:2] != (1, 1.0) or "layers" in query.parameters:
            return None
        ((d, r, _, _),) = parts_of(query)
        k = query.parameters["change_rank"] * (2 if query.run.get("relation") == "replace" else 1)
        k, mu = min(k, d), shift(query)
        if d == r:
            return None
        taus = special.expit(np.linspace(-40, 40, 40001))
        shifts = mu * np.sqrt(taus)
        head = (
            pairs.gain(eps, shifts)
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
