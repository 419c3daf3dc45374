"""Composed runs, everything included, against dp-accounting's PLD at the same grid, in one run.

Usage: python benchmarks/composition.py [--quick]
"""

import math
import subprocess
import sys
import time
from functools import partial

import dp_accounting as dpa
from dp_accounting.pld import privacy_loss_distribution as dp

import privproj

DP_SGD = ((1.0, 0.01, 1000, 10), (0.6, 0.001, 10**5, 10), (2.0, 0.05, 10**6, 2))
M2_RUN = {"steps": 2000, "sampling_rate": 0.01}


def timed(call, repeats):
    """``(best CPU seconds, result)``."""
    best, result = math.inf, None
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return best, result


def peer_epsilon(z, rate, steps, grid):
    single = dp.from_gaussian_mechanism(z, sampling_prob=rate, value_discretization_interval=grid)
    return single.self_compose(steps).get_epsilon_for_delta(1e-5)


def peer_sigma():
    def event(z):
        return dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(z)), 1000)

    return dpa.calibrate_dp_mechanism(
        lambda: dpa.pld.PLDAccountant(value_discretization_interval=1e-4), event, 3.0, 1e-5, tol=1e-4
    )


def m2(z=None):
    return privproj.M2(dim=2048, rank=16, noise_multiplier=z)


def cold(code):
    """Best wall seconds of a fresh interpreter."""
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        best = min(best, time.perf_counter() - start)
    return best


def main():
    for z, rate, steps, wanted in DP_SGD:
        for grid in (1e-3,) if "--quick" in sys.argv else (1e-3, 1e-4):
            theirs, value = timed(partial(peer_epsilon, z, rate, steps, grid), 2)
            run = {"delta": 1e-5, "steps": steps, "sampling_rate": rate, "discretization": grid}
            ours, result = timed(partial(privproj.epsilon, privproj.Gaussian(noise_multiplier=z), **run), 10)
            print(
                f"gaussian {z}, q {rate}, T {steps:.0e}, grid {grid}: {value:.5f} in {theirs * 1e3:.0f} ms, "
                f"ours [{result.lower}, {result.value:.5f}] in {ours * 1e3:.1f} ms: {theirs / ours:.1f} times faster "
                f"(wanted {wanted})"
            )
    theirs, value = timed(peer_sigma, 1)
    run = {"steps": 1000, "sampling_rate": 0.01}
    ours, result = timed(lambda: privproj.sigma(privproj.Gaussian(), epsilon=3.0, delta=1e-5, **run), 3)
    print(
        f"calibration: {value:.5f} in {theirs:.2f} s, ours [{result.lower:.5f}, {result.value:.5f}] in {ours:.2f} s: "
        f"{theirs / ours:.1f} times faster (wanted 10)"
    )
    seconds, result = timed(lambda: privproj.epsilon(m2(0.155974), delta=1e-5, **M2_RUN), 10)
    print(f"m2 rank-free, 2000 steps: epsilon {result.value:.5f} in {seconds * 1e3:.0f} ms CPU (wanted 50)")
    seconds, result = timed(lambda: privproj.sigma(m2(), epsilon=1.0, delta=1e-5, **M2_RUN), 2)
    print(f"m2 rank-free, calibration to epsilon 1: z {result.value:.6f} in {seconds:.2f} s")
    question = (
        "epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.155974 --steps 2000 --sampling-rate 0.01 --delta 1e-5"
    )
    ask = f"from privproj_cli.main import exit_code; exit_code('{question}'.split())"
    theirs, ours = cold("import dp_accounting;" + ask), cold(ask)
    print(f"cold answer: {ours * 1e3:.0f} ms, with import dp_accounting {theirs * 1e3:.0f} ms: {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
