"""Test and measure training on a GPU in at most eight minutes.

``python benchmarks/gpu.py`` prints the name of the card and runs the GPU tests. Then it trains a Llama with LoRA of
rank 16 and an MLP, both by DP-SGD and by M2. It prints the median wall time of a step and the memory that a step adds,
next to plain torch and to Opacus (ghost clipping for the Llama, per-example gradients for the MLP).

``python benchmarks/gpu.py --device cpu --tiny`` checks this program on a machine without a GPU.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import finetuning_step

CASES = {"lora": ("plain", "privproj", "opacus"), "lora-m2": ("privproj",),
         "mlp": ("plain", "privproj", "opacus"), "mlp-m2": ("privproj",)}  # fmt: skip
TINY = {"width": 32, "layers": 1, "vocabulary": 64, "tokens": 16, "batch": 4, "units": 32, "records": 8}
SECONDS, SECONDS_OF_TESTS = 450.0, 300.0  # limits of the whole program and of the tests
WARM_UP, STEPS = 3, 15
TESTS = ("tests/unit/training/test_gpu.py", "tests/unit/training/test_processes.py")


def run_tests():
    """Run the GPU tests; return True if none failed."""
    line = [sys.executable, "-m", "pytest", "-n0", "-q", "-m", "gpu", *TESTS]
    try:
        done = subprocess.run(line, cwd=Path(__file__).parents[1], check=False, timeout=SECONDS_OF_TESTS)
    except subprocess.TimeoutExpired:
        print(f"tests: stopped after {SECONDS_OF_TESTS:g} s")
        return False
    return done.returncode == 0


def measured(case, way, device):
    """Return the median milliseconds of a step, and the MiB that a step adds."""
    import torch

    step = finetuning_step.stepper(case, way, device)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    times = []
    for _ in range(WARM_UP + STEPS):
        wait()
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[WARM_UP:]), finetuning_step.added_memory(step, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=finetuning_step.SIZES)
    parser.add_argument("--tiny", action="store_true", help="use tiny models, to check the program itself")
    parser.add_argument("--no-tests", action="store_true", help="do not run the GPU tests")
    given = parser.parse_args()
    start, works = time.monotonic(), True
    import torch

    print(f"{finetuning_step.kind(given.device)}, torch {torch.__version__}", flush=True)
    if given.tiny:
        finetuning_step.SIZES[given.device] = TINY
    if not given.no_tests:
        works = run_tests()
    print(f"{'case':<10} {'way':<10} {'ms/step':>9} {'/ plain':>8} {'MiB':>9} {'/ plain':>8}")
    plain = None
    for case, ways in CASES.items():
        for way in ways:
            if time.monotonic() - start > SECONDS:
                print(f"{case:<10} {way:<10} skipped, because the time is up")
                continue
            try:
                found = measured(case, way, given.device)
            except Exception as error:
                print(f"{case:<10} {way:<10} failed: {type(error).__name__}: {error}", flush=True)
                works = works and way != "privproj"
                continue
            plain = found if way == "plain" else plain
            ratios = [a / b for a, b in zip(found, plain, strict=True)]
            print(
                f"{case:<10} {way:<10} {found[0]:>9.2f} {ratios[0]:>8.2f} {found[1]:>9.1f} {ratios[1]:>8.2f}",
                flush=True,
            )
    print(f"{time.monotonic() - start:.0f} s, {'all passed' if works else 'something failed'}")
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())
