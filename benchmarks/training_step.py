"""Measure step time and peak memory of the algorithms in one run: a 1024 x 1024 layer, rank 16, batch 256.

``python benchmarks/training_step.py`` prints ratios and saves the numbers as JSON under ``benchmarks/results/``. Each
algorithm runs in a separate process, so that peak memory is measured for each algorithm.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("dp-sgd", "lora-fa", "m2", "m2-projected-clip", "projected-dp-sgd", "opacus")
WIDTH, RANK, BATCH = 1024, 16, 256


def stepper(name, device, layers):
    """Return a function that makes one training step by the named algorithm."""
    import torch
    from torch.nn.functional import mse_loss
    from torch.utils.data import DataLoader, TensorDataset

    from privproj.training import Method, PoissonBatches, add_frozen_lora, make_private

    torch.manual_seed(0)
    module = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)]).to(device)
    if name == "lora-fa":
        module = add_frozen_lora(module, RANK)
    x, y = torch.randn(BATCH, WIDTH, device=device), torch.randn(BATCH, WIDTH, device=device)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    if name == "opacus":
        from opacus import PrivacyEngine

        module, optimizer, _ = PrivacyEngine().make_private(
            module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
            poisson_sampling=False,
        )  # fmt: skip

        def opacus_step():
            optimizer.zero_grad()
            mse_loss(module(x), y).backward()
            optimizer.step()

        return opacus_step
    _, private, private_loader = make_private(
        module=module, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, noise_multiplier=1.0,
        algorithm=Method(name, None if name == "dp-sgd" else RANK), steps=10**6, batches=PoissonBatches(rate=1.0),
    )  # fmt: skip

    def step():
        for batch in private_loader:
            private.step_on(lambda record: mse_loss(module(record[0]), record[1]), batch)

    return step


def measured(name, device, layers, steps):
    """Return the median seconds of a step, and the memory that steps added, in MiB."""
    import torch

    step = stepper(name, device, layers)
    on_gpu = torch.device(device).type == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    base = torch.cuda.memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(steps):
        wait()
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = (torch.cuda.max_memory_allocated() - base) / 2**20 if on_gpu else (peak - base) / 2**10
    return {"seconds": statistics.median(times[steps // 5 :]), "mebibytes": memory}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=NAMES)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measured(given.only, given.device, given.layers, given.steps)))
        return
    found = {name: [] for name in NAMES}
    for _ in range(given.rounds):
        for name in NAMES:
            line = [sys.executable, __file__, "--only", name, "--device", given.device, "--layers", str(given.layers),
                    "--steps", str(given.steps)]  # fmt: skip
            found[name].append(json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout))
    best = {name: {k: min(row[k] for row in rows) for k in rows[0]} for name, rows in found.items()}
    print(f"{'algorithm':<20} {'ms/step':>9} {'/ dp-sgd':>9} {'/ lora-fa':>9} {'MiB':>8}")
    for name, row in best.items():
        ratios = [row["seconds"] / best[other]["seconds"] for other in ("dp-sgd", "lora-fa")]
        print(f"{name:<20} {1e3 * row['seconds']:>9.2f} {ratios[0]:>9.2f} {ratios[1]:>9.2f} {row['mebibytes']:>8.1f}")
    device = platform.machine() if given.device == "cpu" else gpu_name()
    setting = {"width": WIDTH, "rank": RANK, "batch": BATCH, "layers": given.layers, "device": device}
    target = Path(__file__).parent / "results" / f"training_step_{given.device}_{given.layers}.json"
    target.write_text(json.dumps({"setting": setting, "best": best}, indent=2) + "\n")


def gpu_name():
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
