"""Measure time and width of the balls-in-bins enclosure, against mpmath and public accountants in the same run.

Usage: python benchmarks/balls_in_bins.py [--quick] [--peer-python PATH]

``--peer-python`` is an interpreter with the peers (``pip install pld-accounting random-allocation pandas matplotlib``;
by default the current one). Peers that are not installed are reported as missing. Times are CPU seconds: for privproj
the best of several warm calls, for peers one call after a first small one. ``--quick`` omits cases that take minutes.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mpmath as mp
from clock import timed

import privproj

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from reference.allocation import gaussian_epoch_delta

# ``z, batches, epochs, delta`` of the queries that the peers evaluate too
GAUSSIAN_RUNS = (
    (1.0, 1000, 1, 1e-6),
    (2.0, 100, 1, 1e-6),
    (0.8, 200, 1, 1e-5),
    (0.5, 1000, 1, 1e-6),
    (1.0, 100, 20, 1e-5),
)
# extreme settings, which the peers do not evaluate
WIDE_RUNS = ((100.0, 10**5, 1, 1e-9), (0.3, 1000, 1, 1e-6), (1.0, 10**5, 1, 1e-6), (1.0, 1000, 10**4, 1e-5))
# ``z, batches, epochs, delta`` of M2 with dimension 2048 and rank 16
M2_RUNS = ((0.155974, 100, 20, 1e-5), (0.3, 100, 20, 1e-5))
WANTED = {"gaussian 1.0, t 1000, 1 epochs": 0.3, "m2 0.155974, t 100, 20 epochs": 1.0}  # target times in seconds
TIMEOUT = 300  # seconds, time limit of a peer for one query

# Programs that define ``ask``, and return a lower and an upper epsilon. The last one accounts for another scheme.
PEERS = {
    "PLD_accounting": """
import PLD_accounting as p
def ask(z, t, epochs, delta):
    high, low = p.gaussian_allocation_epsilon_range(delta=delta, sigma=z, num_steps=t, num_epochs=epochs)
    return low, high
""",
    "random_allocation, combined": """
from random_allocation.random_allocation_scheme import PrivacyParams, SchemeConfig, allocation_epsilon_combined
def ask(z, t, epochs, delta):
    requested = PrivacyParams(sigma=z, num_steps=t, num_epochs=epochs, delta=delta)
    config = SchemeConfig(allocation_direct_alpha_orders=list(range(2, 61)))
    return None, allocation_epsilon_combined(requested, config)
""",
    "random_allocation, recursive": """
from random_allocation.random_allocation_scheme import PrivacyParams, SchemeConfig, allocation_epsilon_recursive
def ask(z, t, epochs, delta):
    requested = PrivacyParams(sigma=z, num_steps=t, num_epochs=epochs, delta=delta)
    return None, allocation_epsilon_recursive(requested, SchemeConfig())
""",
    "dp-accounting, Poisson at rate 1/t": """
from dp_accounting.pld import privacy_loss_distribution as pld
def ask(z, t, epochs, delta):
    step = pld.from_gaussian_mechanism(z, sampling_prob=1.0 / t, value_discretization_interval=1e-4)
    return None, step.self_compose(t * epochs).get_epsilon_for_delta(delta)
""",
}
REQUESTED = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
ask(2.0, 10, 1, 1e-3)
start = time.process_time()
found = ask(*json.loads(sys.argv[1]))
print(json.dumps([time.process_time() - start, *found]))
"""


def best_answer(call, repeats=5):
    """Return ``(least CPU seconds, first result)`` of repeated calls.

    The first call gets 0 and is not timed. The others get 1, 2, and so on.
    """
    result = call(0)
    return min(timed(call, i + 1)[0] for i in range(repeats)), result


def peer(python, program, run):
    """Return ``(seconds, lower, upper)`` of a peer, or the reason why it has no result."""
    try:
        found = subprocess.run(
            [python, "-c", program + REQUESTED, json.dumps(run)],
            capture_output=True, text=True, timeout=TIMEOUT,
            env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer in {TIMEOUT} s"
    if found.returncode:
        return found.stderr.strip().splitlines()[-1]
    return json.loads(found.stdout.splitlines()[-1])


def epsilon(mechanism, batches, epochs, delta):
    return privproj.epsilon(mechanism, delta=delta, sampling="balls-in-bins", batches=batches, steps=epochs)


def measure(name, mechanism, run):
    """Print the enclosure of epsilon by privproj; return its CPU seconds and the result."""
    # Epochs are kept for further questions, so each call has a noise multiplier of its own.
    z = mechanism.noise_multiplier
    seconds, found = best_answer(lambda i: epsilon(replace(mechanism, noise_multiplier=z * (1.0 + 1e-12 * i)), *run))
    width = "not known" if found.lower is None else f"{found.value / found.lower - 1:.1e}" if found.lower else "0"
    label = f"{name}, t {run[0]}, {run[1]} epochs"
    wanted = f" (wanted {WANTED[label]} s)" if label in WANTED else ""
    ends = "" if found.lower is None else f"{found.lower:.6f} .. "
    print(f"{label}, delta {run[2]:g}: {ends}{found.value:.6f}, relative width {width}, {seconds:.3f} s{wanted}")
    return seconds, found


def against_mpmath(z, batches, found):
    """Print the exact delta at both ends of an enclosure of epsilon."""
    with mp.workdps(10):
        high, low = (float(gaussian_epoch_delta(eps, z, batches)) for eps in (found.value, found.lower))
    print(f"    exact delta at our upper bound {high:.6g}, at our lower bound {low:.6g}; target {found.delta:g}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    for z, *run in GAUSSIAN_RUNS:
        ours, found = measure(f"gaussian {z}", privproj.Gaussian(noise_multiplier=z), run)
        if run[1] == 1:
            against_mpmath(z, run[0], found)
        for name, program in PEERS.items():
            if options.quick and (name.startswith("random_allocation") or run[1] > 1):
                continue
            theirs = peer(options.peer_python, program, [z, *run])
            if isinstance(theirs, str):
                print(f"    {name}: {theirs}")
                continue
            seconds, low, high = theirs
            ends = f"{high:.6f}" if low is None else f"{low:.6f} .. {high:.6f}, relative width {high / low - 1:.1e}"
            print(f"    {name}: {ends}, {seconds:.2f} s: {seconds / ours:.1f} times our time")
    for z, *run in WIDE_RUNS:
        measure(f"gaussian {z}", privproj.Gaussian(noise_multiplier=z), run)
    for z, *run in M2_RUNS:
        measure(f"m2 {z}", privproj.M2(dim=2048, rank=16, noise_multiplier=z), run)


if __name__ == "__main__":
    main()
