"""A composed M2 run, everything included, against dp-accounting's plain subsampled Gaussian, in one run.

Usage: python benchmarks/composition.py
"""

import math
import time

from dp_accounting.pld import privacy_loss_distribution as dp

import privproj
from privproj import pld

RUN = {"steps": 2000, "sampling_rate": 0.01}


def timed(call, repeats=5):
    """``(best CPU seconds, result)``."""
    best, result = math.inf, None
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return best, result


def peer():
    single = dp.from_gaussian_mechanism(0.8, sampling_prob=0.01, value_discretization_interval=1e-3)
    return single.self_compose(2000).get_epsilon_for_delta(1e-5)


def m2(z=None):
    return privproj.M2(dim=2048, rank=16, noise_multiplier=z)


def main():
    base, value = timed(peer)
    print(f"dp-accounting gaussian z=0.8, grid 1e-3: epsilon {value:.5f}, {base * 1e3:.0f} ms")
    cases = {
        "rank-free, grid 1e-3": lambda: privproj.epsilon(m2(0.155974), delta=1e-5, discretization=1e-3, **RUN).value,
        "rank-free, default grid": lambda: privproj.epsilon(m2(0.155974), delta=1e-5, **RUN).value,
        "gaussian z=0.8, grid 1e-3": lambda: (
            privproj.epsilon(privproj.Gaussian(noise_multiplier=0.8), delta=1e-5, discretization=1e-3, **RUN).value
        ),
        "mixture-rdp": lambda: privproj.epsilon(m2(0.155974), delta=1e-5, bound="mixture-rdp", **RUN).value,
    }
    for name, call in cases.items():
        seconds, value = timed(call)
        print(f"{name:<26} epsilon {value:.5f}, {seconds * 1e3:6.0f} ms, {seconds / base:.2f} times dp-accounting")
    count = 0
    compose = pld.composed_phases

    def counted(*args):
        nonlocal count
        count += 1
        return compose(*args)

    pld.composed_phases = counted
    seconds, found = timed(lambda: privproj.sigma(m2(), epsilon=1.0, delta=1e-5, **RUN).value, 1)
    print(f"calibration to epsilon 1: z {found:.6f}, {count} compositions, {seconds:.2f} s")


if __name__ == "__main__":
    main()
