"""Run one job by one tool in a separate process.

``python benchmarks/peer_jobs.py TOOL JOB [SECONDS]`` reads the parameters as JSON from standard input and prints one
JSON object. It contains the value, the CPU seconds of a warm call, the total CPU seconds up to the end of the first
call, and the peak memory of a call. The process imports only the selected tool, so that peers may be in another
environment. A parameter changes by 1e-9 between calls, so that no cache contains the result. With ``SECONDS``, a limit
on the CPU time, there is one call.
"""

import importlib
import json
import resource
import sys
import time
import warnings

from clock import memory, tidy, timed

MEMORY_LIMIT, SLOW, BUDGET, MOST = 8 * 2**30, 12.0, 1.5, 40

# modules that count as the import of a tool, by the first word of its label
LOADED = {
    "privproj": (
        "privproj.accounting.query",
        "privproj.composition.compose",
        "privproj.accounting.calibration",
        "scipy.special",
    ),
    "scipy": ("peer_naive",),
    "dp-accounting": ("dp_accounting", "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp"),
    "prv-accountant": ("prv_accountant",),
    "Opacus": ("opacus.accountants", "opacus.accountants.utils"),
    "riskcal": ("riskcal.analysis", "riskcal.calibration.dpsgd", "riskcal.calibration.blackbox", "opacus.accountants"),
}


# --- privproj ---------------------------------------------------------------------------------------


def ends(result):
    return {"value": result.value, "lower": result.lower, "upper": result.upper}


def own_delta(n, z, eps):
    import privproj

    return ends(privproj.delta(privproj.Gaussian(noise_multiplier=z * n), epsilon=eps))


def own_epsilon(n, z, delta, **run):
    import privproj

    return ends(privproj.epsilon(privproj.Gaussian(noise_multiplier=z * n), delta=delta, **own_run(run)))


def own_sigma(n, eps, delta, **run):
    import privproj

    return ends(privproj.sigma(privproj.Gaussian(), epsilon=eps * n, delta=delta, **own_run(run)))


def own_run(run):
    """Return the run with privproj's names for ``q``, ``T`` and ``grid``."""
    names = {"q": "sampling_rate", "T": "steps", "grid": "discretization"}
    return {names[name]: value for name, value in run.items()}


def own_beta_one_shot(n, rows):
    import privproj

    d, r, k, mu, delta = rows[0]
    mechanism = privproj.M2(dim=d, rank=r, change_rank=k, noise_multiplier=n / mu)
    return [privproj.epsilon(mechanism, delta=delta, bound="beta-tail").value]


def own_beta_plain(n, rows):
    import math

    from privproj.mechanisms.m2.beta_tail_kernels import beta_tail_epsilon

    return [beta_tail_epsilon(r / 2, (d - r) / 2, k, mu, math.log(delta), False) for d, r, k, mu, delta in rows]


def own_beta_compiled(n, rows):
    import numpy as np

    import privproj

    d, r, k, mu, delta = np.array(rows, dtype=float).T
    settings = {"dim": d, "rank": r, "change_rank": k, "noise_multiplier": 1.0 / mu}
    return privproj.epsilons("m2", bound="beta-tail", delta=delta, **settings).value


def own_beta_kernel(n, rows, state={}):  # noqa: B006 - arrays are made once: the kernel call alone is timed
    import numpy as np
    from beta_tail import beta_tail_epsilons

    from privproj.numerics.jit import compile_kernel

    if not state:
        d, r, k, mu, delta = np.array(rows, dtype=float).T
        state["columns"] = [np.ascontiguousarray(c) for c in (r / 2, (d - r) / 2, k, mu, np.log(delta))]
        state["kernel"], state["out"] = compile_kernel(beta_tail_epsilons), np.empty(len(rows))
    state["kernel"](*state["columns"], False, state["out"])
    return state["out"]


def own_rank_free_delta(n, dim, rank, z, eps):
    import privproj

    return ends(privproj.delta(privproj.M2(dim=dim, rank=rank, noise_multiplier=z * n), epsilon=eps))


def own_rank_free_epsilon(n, dim, rank, z, delta):
    import privproj

    return ends(privproj.epsilon(privproj.M2(dim=dim, rank=rank, noise_multiplier=z * n), delta=delta))


def own_wishart(n, dim, rank, misalignment, eps):
    import privproj

    return ends(privproj.delta(privproj.Wishart(dim=dim, rank=rank, misalignment=misalignment * n), epsilon=eps))


def own_trade_off(n, z, rates, **run):
    import privproj
    from privproj.accounting.query import composition_of
    from privproj.profiles.tradeoff import tradeoff

    return tradeoff(composition_of(privproj.Gaussian(noise_multiplier=z * n), None, own_run(run)).curve(), rates)


# --- peers ------------------------------------------------------------------------------------------


def naive(name):
    def call(n, **parameters):
        import peer_naive

        return getattr(peer_naive, name)(**parameters)

    return call


def google_pld(z, q=1.0, T=1, grid=1e-4):
    from dp_accounting.pld import privacy_loss_distribution as pld

    single = pld.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=grid or 1e-4)
    return single.self_compose(T) if T > 1 else single


def google_rdp(z, q=1.0, T=1):
    import dp_accounting as dp

    event = dp.GaussianDpEvent(z) if q == 1.0 else dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))
    return dp.rdp.RdpAccountant().compose(event, T)


def google_calibrated(n, eps, delta, q, T, accountant):
    import dp_accounting as dp

    def event(z):
        return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), T)

    def pld():
        return dp.pld.PLDAccountant(value_discretization_interval=1e-4)

    make = dp.rdp.RdpAccountant if accountant == "rdp" else pld
    return dp.calibrate_dp_mechanism(make, event, eps * n, delta, tol=1e-4)


def google_analytic_epsilon(n, z, delta):
    import dp_accounting as dp

    return dp.get_epsilon_gaussian(z * n, delta)


def google_analytic_sigma(n, eps, delta):
    import dp_accounting as dp

    return dp.get_sigma_gaussian(eps * n, delta)


def prv(z, delta, q=1.0, T=1, grid=None):
    """Return the accountant of prv_accountant.

    It has an error tolerance in epsilon instead of a grid step: 0.1 for the grid step 1e-3, else 0.01.
    """
    import prv_accountant as peer

    single = peer.PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=z)
    single = single if q < 1.0 else peer.GaussianMechanism(noise_multiplier=z)
    error = 0.1 if grid == 1e-3 else 0.01
    return peer.PRVAccountant(prvs=single, max_self_compositions=T, eps_error=error, delta_error=delta / 1000)


def prv_epsilon(n, z, delta, q=1.0, T=1, grid=None):
    low, value, high = prv(z * n, delta, q, T, grid).compute_epsilon(delta, [T])
    return {"value": high, "lower": low, "upper": high, "estimate": value}


def prv_delta(n, z, eps):
    """Return delta by prv_accountant, with a tolerance of 0.001 of the approximate delta."""
    import math

    near = math.exp(-0.5 * (eps * z - 0.5 / z) ** 2) / (1.0 + eps * z) ** 2
    low, _, high = prv(z * n, near).compute_delta(eps, [1])
    return {"value": high, "lower": low, "upper": high}


def prv_sigma(n, eps, delta, q, T):
    """Return the noise multiplier by prv_accountant, to 0.01 in epsilon (its default is 0.1)."""
    from prv_accountant.dpsgd import find_noise_multiplier

    return find_noise_multiplier(q, T, eps * n, delta, eps_error=0.01)


def opacus(kind):
    def call(n, z, delta, q=1.0, T=1, grid=None):
        from opacus.accountants import create_accountant

        accountant = create_accountant(kind)
        accountant.history = [(z * n, q, T)]
        more = {"eps_error": 0.1 if grid == 1e-3 else 0.01} if kind == "prv" else {}
        return accountant.get_epsilon(delta, **more)

    return call


def opacus_sigma(kind):
    def call(n, eps, delta, q=1.0, T=1):
        from opacus.accountants.utils import get_noise_multiplier

        run = {"sample_rate": q, "steps": T, "accountant": kind, "epsilon_tolerance": 1e-3}
        return get_noise_multiplier(target_epsilon=eps * n, target_delta=delta, **run)

    return call


def riskcal_epsilon(n, z, delta, q, T, grid):
    from riskcal.calibration.dpsgd import create_dpsgd_epsilon_evaluator

    return create_dpsgd_epsilon_evaluator(q, T, delta, grid)(z * n).epsilon


def riskcal_sigma(n, eps, delta, q, T):
    from riskcal.accountants import CTDAccountant
    from riskcal.calibration.blackbox import find_noise_multiplier_for_epsilon_delta

    return find_noise_multiplier_for_epsilon_delta(CTDAccountant, q, T, eps * n, delta, grid_step=1e-4)


def riskcal_trade_off(n, z, rates, q, T, grid):
    import numpy as np
    from riskcal.analysis import get_beta_from_pld

    return [float(b) for b in get_beta_from_pld(google_pld(z * n, q, T, grid), alpha=np.array(rates))]


# tools of each job; a tool without a function for a job is not listed
JOBS = {
    "gaussian delta": {
        "privproj": own_delta,
        "scipy (naive)": naive("gaussian_delta"),
        "dp-accounting PLD": lambda n, z, eps: google_pld(z * n).get_delta_for_epsilon(eps),
        "dp-accounting RDP": lambda n, z, eps: google_rdp(z * n).get_delta(eps),
        "prv-accountant": prv_delta,
    },
    "gaussian epsilon": {
        "privproj": own_epsilon,
        "scipy (naive)": naive("gaussian_epsilon"),
        "dp-accounting analytic": google_analytic_epsilon,
        "dp-accounting PLD": lambda n, z, delta: google_pld(z * n).get_epsilon_for_delta(delta),
        "dp-accounting RDP": lambda n, z, delta: google_rdp(z * n).get_epsilon(delta),
        "prv-accountant": prv_epsilon,
        "Opacus RDP": opacus("rdp"),
        "Opacus PRV": opacus("prv"),
    },
    "gaussian sigma": {
        "privproj": own_sigma,
        "scipy (naive)": naive("gaussian_sigma"),
        "dp-accounting analytic": google_analytic_sigma,
        "Opacus RDP": opacus_sigma("rdp"),
        "Opacus PRV": opacus_sigma("prv"),
    },
    "beta-tail": {
        "privproj kernel, compiled": own_beta_kernel,
        "privproj call, compiled": own_beta_compiled,
        "privproj call, plain": own_beta_plain,
        "privproj one shot": own_beta_one_shot,
        "scipy (naive)": naive("beta_tail"),
    },
    "rank-free delta": {"privproj": own_rank_free_delta, "scipy (naive)": naive("rank_free_delta")},
    "rank-free epsilon": {"privproj": own_rank_free_epsilon, "scipy (naive)": naive("rank_free_epsilon")},
    "wishart delta": {
        "privproj": own_wishart,
        "scipy (naive)": lambda n, **p: naive("wishart_delta")(n, how="stats", **p),
        "scipy (naive, special)": lambda n, **p: naive("wishart_delta")(n, how="special", **p),
        "scipy (nested quad)": lambda n, **p: naive("wishart_delta")(n, how="nested", **p),
    },
    "dp-sgd epsilon": {
        "privproj": own_epsilon,
        "dp-accounting PLD": lambda n, z, delta, q, T, grid: google_pld(z * n, q, T, grid).get_epsilon_for_delta(delta),
        "dp-accounting RDP": lambda n, z, delta, q, T, grid: google_rdp(z * n, q, T).get_epsilon(delta),
        "prv-accountant": prv_epsilon,
        "Opacus RDP": opacus("rdp"),
        "Opacus PRV": opacus("prv"),
        "riskcal": riskcal_epsilon,
    },
    "dp-sgd sigma": {
        "privproj": own_sigma,
        "dp-accounting PLD": lambda n, **p: google_calibrated(n, accountant="pld", **p),
        "dp-accounting RDP": lambda n, **p: google_calibrated(n, accountant="rdp", **p),
        "prv-accountant": prv_sigma,
        "Opacus RDP": opacus_sigma("rdp"),
        "Opacus PRV": opacus_sigma("prv"),
        "riskcal": riskcal_sigma,
    },
    "trade-off": {"privproj": own_trade_off, "riskcal": riskcal_trade_off},
}


# --- measuring --------------------------------------------------------------------------------------


def repeated(call, first):
    """Return the least CPU seconds of repeated calls, and the number of calls.

    A slow call is not repeated; then the seconds are ``first``.
    """
    times = []
    while first < SLOW and len(times) < MOST and (len(times) < 3 or sum(times) < BUDGET):
        times.append(timed(call, 1.0 + 1e-9 * (len(times) + 1))[0])
    return min(times, default=first), len(times)


def measured(tool, job, parameters, limit=0):
    """Return time, memory and result of one job of one tool."""
    for name in LOADED[tool.split()[0]]:
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    if limit:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    call, size = JOBS[job][tool], tidy()
    first, value = timed(lambda nudge: call(nudge, **parameters), 1.0)
    cold = time.process_time()
    seconds, repeats = (first, 0) if limit else repeated(lambda nudge: call(nudge, **parameters), first)
    if repeats:
        size = tidy()
        call(1.0 + 1e-7, **parameters)
    found = {"seconds": seconds, "first": first, "cold": cold, "repeats": repeats}
    return {**found, "peak_mib": memory("VmHWM") - size, "answer": plain(value)}


def plain(value):
    """Return a result as JSON data; at most 32 values of a column."""
    if isinstance(value, dict):
        return {name: None if x is None else float(x) for name, x in value.items()}
    return {"values": [float(x) for x in value[:32]]} if hasattr(value, "__len__") else {"value": float(value)}


def reason(error):
    """Return why a tool has no result, in a few words."""
    if isinstance(error, ImportError):
        return "not installed"
    if isinstance(error, MemoryError):
        return f"needs more than {MEMORY_LIMIT // 2**30} GiB"
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:90]}".rstrip(": ")


def main():
    warnings.simplefilter("ignore")
    tool, job, *limit = sys.argv[1:]
    if JOBS[job].get(tool) is None:
        raise SystemExit(f"{tool} has no function for {job}")
    try:
        print(json.dumps(measured(tool, job, json.load(sys.stdin), *map(int, limit))))
    except Exception as error:
        print(json.dumps({"failed": reason(error)}))


if __name__ == "__main__":
    main()
