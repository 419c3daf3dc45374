"""Measure accuracy at equal privacy, with the clipping norm and the learning rate tuned for each method.

``python benchmarks/accuracy.py [digits|mixture]`` trains a linear model of 1024 inputs and ten classes for each epsilon
and rank. The methods are DP-SGD, LoRA-FA, M2 (as published and rank-free), M2 with projected clipping, and projected
DP-SGD. **digits**: fixed public random ReLU features of the 1347 training images of scikit-learn. **mixture**: 20,000
samples of ten spherical Gaussians, so that a batch of 256 is a small part of the records. Clipping norm and learning
rate are tuned with two seeds on a third of the held-out records. The table is computed on the other two thirds with
five other seeds. It also contains the noise and the projection error that ``privproj.choose`` reports. The program
plots docs/accuracy.svg.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

# steps and epsilons of each problem
TASKS = {"digits": ((300, 1.0), (300, 3.0), (300, 8.0), (1500, 3.0)),
         "mixture": ((300, 1.0), (300, 3.0), (300, 8.0), (3000, 3.0))}  # fmt: skip
RANKS, SEEDS, TUNING_SEEDS, DELTA = (4, 16, 64), range(5), (98, 99), 1e-5
FEATURES, BATCH = 1024, 256
# learning rate times clipping norm, the length of a step; the range is extended if the best value is at an end
CLIPS, PACES = (0.1, 0.3, 1.0), (0.25, 1.0, 4.0, 16.0)
# methods of the long runs
LONG = {"digits": ("DP-SGD", "M2 r=4", "M2 projected clip r=4", "M2 r=16", "M2 projected clip r=16"),
        "mixture": ("DP-SGD", "M2 r=4", "M2 r=16", "M2 r=64")}  # fmt: skip
RESULTS = Path(__file__).parent / "results"


def tune(
    mean_of: Callable[[float, float], float], clips: tuple[float, ...], paces: tuple[float, ...]
) -> tuple[float, float]:
    """Return the clipping norm and the pace with the best mean accuracy.

    The pace is the learning rate times the clipping norm. The paces are extended by factors of four until the best one
    is inside the range.
    """
    tried = {pair: mean_of(*pair) for pair in product(clips, paces)}
    while True:
        clip, pace = max(tried, key=lambda pair: tried[pair])
        missing = [(clip, near) for near in (0.25 * pace, 4.0 * pace) if (clip, near) not in tried]
        if not missing:
            return clip, pace
        tried |= {pair: mean_of(*pair) for pair in missing}


def methods():
    """Yield ``(label, algorithm, rank, bound)`` for every method of the table."""
    yield "DP-SGD", "dp-sgd", None, None
    for rank in RANKS:
        yield f"M2 r={rank}", "m2", rank, None
        yield f"M2 projected clip r={rank}", "m2-projected-clip", rank, None
    yield "projected DP-SGD r=16", "projected-dp-sgd", 16, None
    yield "M2 as published r=16", "m2", 16, "good-event"
    yield "LoRA-FA r=16", "lora-fa", 16, None


def run_of(problem, steps):
    from privproj.training.plan import GRID

    return {"steps": steps, "sampling_rate": -(-(BATCH / len(records(problem)[1])) // GRID) * GRID}


@cache
def noise(problem, algorithm, rank, bound, epsilon, steps):
    """Return the noise multiplier, its ratio to that of DP-SGD, and the projection error of the run."""
    import privproj

    run, target = run_of(problem, steps), {"epsilon": epsilon, "delta": DELTA}
    layer = privproj.Layer(dim=FEATURES, rank=rank or 1, columns=10)
    (row, *_) = (r for r in privproj.choose(layers=layer, **target, **run)
                 if r.algorithm == (algorithm if algorithm != "lora-fa" else "dp-sgd"))  # fmt: skip
    z, over, error = row.result.value, row.utility.noise_over_dp_sgd, row.utility.projection_error_of_run
    if bound:
        published = privproj.sigma(privproj.M2(dim=FEATURES, rank=rank, columns=10), bound=bound, **target, **run).value
        return published, over * published / z, error
    return (z, over, error) if algorithm != "lora-fa" else (z, 1.0, math.inf)


@cache
def records(problem):
    """Return features and labels of the training records, then of the held-out records."""
    import torch

    from privproj.training import classifier

    draw = torch.Generator().manual_seed(0)
    if problem == "mixture":
        # Neighboring means are 5.4 deviations apart.
        train, whole = 20_000, 23_000
        means = 0.12 * torch.randn(10, FEATURES, generator=draw)
        y = torch.randint(0, 10, (whole,), generator=draw)
        x = (means[y] + torch.randn(whole, FEATURES, generator=draw)) / math.sqrt(FEATURES)
        return x[:train], y[:train], x[train:], y[train:]
    data = classifier.load("digits")
    weights = torch.randn(data.x.shape[1], FEATURES, generator=draw)
    lift = lambda x: torch.relu(x @ weights) / math.sqrt(FEATURES)  # noqa: E731
    return lift(data.x), data.y, lift(data.test_x), data.test_y


def accuracy(problem, algorithm, rank, z, steps, clip, pace, seed):
    """Return the accuracy and the CPU seconds of training one model.

    A tuning seed is evaluated on the held-out records for tuning, any other seed on those for the table.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    from privproj.training import Method, add_frozen_lora, make_private

    torch.set_num_threads(1)
    x, y, kept_x, kept_y = records(problem)
    torch.manual_seed(seed)
    head = torch.nn.Linear(FEATURES, 10, bias=False)
    torch.nn.init.zeros_(head.weight)
    module = add_frozen_lora(head, rank, insecure_seed=seed) if algorithm == "lora-fa" else head
    trained = [p for p in module.parameters() if p.requires_grad]
    private, optimizer, batches = make_private(
        module=module, optimizer=torch.optim.SGD(trained, lr=pace / clip),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH), max_grad_norm=clip,
        algorithm=Method(algorithm, rank if algorithm in ("projected-dp-sgd", "m2", "m2-projected-clip") else None),
        steps=steps, insecure_seed=seed, noise_multiplier=z, delta=DELTA,
    )  # fmt: skip
    begun = time.process_time()
    while len(batches):
        for batch in batches:
            optimizer.step_on(lambda record: cross_entropy(private(record[0]), record[1]), batch)
    spent = time.process_time() - begun
    optimizer.close()
    third = len(kept_y) // 3
    seen = slice(third) if seed in TUNING_SEEDS else slice(third, None)
    with torch.no_grad():
        return float((private(kept_x[seen]).argmax(1) == kept_y[seen]).float().mean()), spent


def row_of(problem, task, method):
    """Return the row of a method: tune it, then train it with five other seeds."""
    (steps, epsilon), (label, algorithm, rank, bound) = task, method
    z, over, error = noise(problem, algorithm, rank, bound, epsilon, steps)

    def runs(clip, pace, seeds):
        return zip(*(accuracy(problem, algorithm, rank, z, steps, clip, pace, seed) for seed in seeds), strict=True)

    clip, pace = tune(lambda *pair: statistics.mean(next(runs(*pair, TUNING_SEEDS))), CLIPS, PACES)
    found, seconds = runs(clip, pace, SEEDS)
    return {"problem": problem, "steps": steps, "epsilon": epsilon, "method": label, "noise_multiplier": z,
            "noise_over_dp_sgd": over, "projection_error_of_run": error if math.isfinite(error) else None,
            "clip": clip, "pace": pace, "accuracy": statistics.mean(found), "deviation": statistics.stdev(found),
            "ms_per_step": 1000.0 * min(seconds) / steps}  # fmt: skip


def print_rows(rows):
    columns = "steps", "epsilon", "method", "noise / DP-SGD's", "missed", "accuracy", "clip", "rate x clip", "ms a step"
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for row in rows:
        error = row["projection_error_of_run"]
        missed = "never averaged" if error is None else f"{error:.2g}"
        print(f"| {row['steps']} | {row['epsilon']:g} | {row['method']} | {row['noise_over_dp_sgd']:.3f} | {missed} | "
              f"{100 * row['accuracy']:.1f} ± {100 * row['deviation']:.1f} % | {row['clip']:g} | {row['pace']:g} | "
              f"{row['ms_per_step']:.1f} |", flush=True)  # fmt: skip


DRAWN = ("DP-SGD", "M2 r=64", "M2 r=16", "M2 r=4", "M2 as published r=16", "LoRA-FA r=16")  # methods in the figure


def draw(rows):
    """Plot accuracy on the mixture against epsilon, by method, in docs/accuracy.svg."""
    from privproj_cli.output import draw

    short = [row for row in rows if row["steps"] == 300]
    epsilons = sorted({row["epsilon"] for row in short})
    found = {(row["method"], row["epsilon"]): 100 * row["accuracy"] for row in short}
    columns = {name: [found[name, epsilon] for epsilon in epsilons] for name in DRAWN}
    limits = {"yscale": "linear", "ylim": (10, 100), "xscale": "log", "xticks": epsilons, "xticklabels": epsilons}
    picture = Path(__file__).parents[1] / "docs" / "accuracy.svg"
    title = "Mixture of 20,000 records, 300 steps"
    draw(str(picture), epsilons, columns, "epsilon", "accuracy in per cent", title, **limits)


def main():
    for problem in sys.argv[1:] or TASKS:
        with ProcessPoolExecutor(2) as pool:
            jobs = [pool.submit(row_of, problem, task, method) for task in TASKS[problem] for method in methods()
                    if task[0] == 300 or method[0] in LONG[problem]]  # fmt: skip
            rows = [job.result() for job in jobs]
        print(problem)
        print_rows(rows)
        if problem == "mixture":
            draw(rows)
        (RESULTS / f"accuracy_{problem}.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
