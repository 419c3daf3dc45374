"""Measure the accuracy of every training algorithm at epsilon 1, 3 and 8 with five seeds: a linear head on digits.

``python benchmarks/algorithms.py`` saves the table as JSON under ``benchmarks/results/``. Clipping norm and learning
rate are tuned for each cell with two seeds on a third of the test records, which the table does not use.
"""

import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from accuracy import tune
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from privproj.accounting.schedule import dp_sft
from privproj.training import Method, Steps, Subspace, Trajectory, add_frozen_lora, add_prism, classifier, make_private

EPSILONS, SEEDS, DELTA, STEPS, BATCH = (1.0, 3.0, 8.0), range(5), 1e-5, 200, 256
# learning rate times clipping norm; the range is extended if the best value is at an end
CLIPS, PACES, TUNING_SEEDS = (0.1, 0.3, 1.0), (0.5, 2.0, 8.0), (98, 99)
RANKS = {"projected-dp-sgd": 64, "prism": 4}
NAMES = ("dp-sgd", "lora-fa", "lora-resampled", "flora", "m2", "m2-projected-clip", "projected-dp-sgd", "prism",
         "prism adaptive", "dp-sft")  # fmt: skip


def problem(seed):
    torch.manual_seed(seed)
    head = nn.Linear(64, 10)
    nn.init.zeros_(head.weight)
    return classifier.load("digits"), head


def stage(module, data, clip, rate, algorithm, steps, noise, **more):
    """Train a module; return the private optimizer, and ``look(optimizer)`` from before the first step."""
    look = more.pop("look", lambda optimizer: None)
    trained = [p for p in module.parameters() if p.requires_grad]
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=BATCH)
    module, optimizer, batches = make_private(
        module=module, optimizer=torch.optim.SGD(trained, lr=rate), data_loader=loader,
        algorithm=Method(algorithm, **more), max_grad_norm=clip, steps=steps, **noise,
    )  # fmt: skip
    seen = look(optimizer)
    while len(batches):
        for batch in batches:
            optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
    optimizer.close()
    return optimizer, seen


def accuracy(name, epsilon, clip, pace, seed):
    """Return the accuracy of one run.

    A tuning seed is evaluated on the test records for tuning, any other seed on the others.
    """
    torch.set_num_threads(1)
    data, module = problem(seed)
    rate = pace / clip
    algorithm = name.split()[0]
    rank = RANKS.get(algorithm, 16)
    noise = {"epsilon": epsilon, "delta": DELTA}
    if algorithm.startswith("lora"):
        module = add_frozen_lora(module, rank)
    if algorithm == "prism":
        steps = Steps() if name.endswith("adaptive") else Steps(kind="plain", momentum=0.0)
        module, rate = add_prism(module, rank, steps=steps), rate * (0.1 if name.endswith("adaptive") else 1.0)
    if algorithm == "dp-sft":
        half = STEPS // 2
        first = dp_sft(**noise, sampling_rate=BATCH / len(data.x), steps=(half, half)).phases[0].mechanism
        search = {"noise_multiplier": first.noise_multiplier}
        _, trajectory = stage(module, data, clip, rate, "dp-sgd", half, search, look=lambda o: Trajectory(o, rank))
        found: Subspace = trajectory.subspace()
        optimizer, _ = stage(module, data, clip, rate, "dp-sft", half, noise, subspace=found)
    else:
        more = {"rank": rank} if algorithm in ("projected-dp-sgd", "m2", "m2-projected-clip", "flora") else {}
        if algorithm in ("flora", "lora-resampled"):
            more["every"] = 10
        optimizer, _ = stage(module, data, clip, rate, algorithm, STEPS, noise, **more)
    assert optimizer.epsilon(DELTA).value <= epsilon
    with torch.no_grad():
        right = (module(data.test_x).argmax(1) == data.test_y).float()
    third = len(right) // 3
    return float((right[:third] if seed in TUNING_SEEDS else right[third:]).mean())


def cell(name, epsilon):
    """Return mean and standard deviation of the accuracy, at the tuned clipping norm and learning rate."""

    def mean_of(clip, pace):
        return statistics.mean(accuracy(name, epsilon, clip, pace, seed) for seed in TUNING_SEEDS)

    clip, pace = tune(mean_of, CLIPS, PACES)
    found = [accuracy(name, epsilon, clip, pace, seed) for seed in SEEDS]
    return {"task": "digits", "algorithm": name, "epsilon": epsilon, "clip": clip, "rate": pace / clip,
            "mean": statistics.mean(found), "deviation": statistics.stdev(found)}  # fmt: skip


def main():
    with ProcessPoolExecutor(2) as pool:
        jobs = [pool.submit(cell, name, epsilon) for name in NAMES for epsilon in EPSILONS]
        rows = [job.result() for job in jobs]
    print("| algorithm | " + " | ".join(f"eps {e:g}" for e in EPSILONS) + " |\n|" + " --- |" * 4)
    for name in NAMES:
        own = [row for row in rows if row["algorithm"] == name]
        shown = [f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f} %" for row in own]
        print(f"| {name} | " + " | ".join(shown) + " |", flush=True)
    target = Path(__file__).parent / "results" / "algorithms_digits.json"
    target.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
