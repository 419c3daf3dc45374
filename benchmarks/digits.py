"""Accuracy on scikit-learn's digits at equal privacy, with a clip and a learning rate tuned for each method.

``python benchmarks/digits.py`` trains a linear head on 1024 random ReLU features of the pictures (drawn once, public),
by DP-SGD, LoRA-FA, M2 (as published and rank-free), M2 with projected clipping and M1, for each epsilon and rank. Clip
and rate are chosen with two seeds on 150 records that are in no table; the table has the other 300, five other seeds.
Beside each: what ``privproj.choose`` says of its noise and of its projection error. 300 steps, and 1500 for some. It
draws docs/accuracy.svg.
"""

import json
import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

TASKS = ((300, 1.0), (300, 3.0), (300, 8.0), (1500, 3.0))
RANKS, SEEDS, TUNING_SEEDS, DELTA = (4, 16, 64), range(5), (98, 99), 1e-5
FEATURES, BATCH, KEPT, TUNING = 1024, 256, 450, 150
CLIPS, PACES = (0.1, 0.3, 1.0), (0.25, 1.0, 4.0, 16.0)
"""A pace is the learning rate times the clip, which says how far a step goes; more are tried where the best is last."""
LONG = ("DP-SGD", "M2 r=4", "M2 projected clip r=4", "M2 r=16", "M2 projected clip r=16")
"""Methods of the long run."""


def methods():
    """The label, the algorithm, the rank and the bound of every method."""
    yield "DP-SGD", "dp-sgd", None, None
    for rank in RANKS:
        yield f"M2 r={rank}", "m2", rank, None
        yield f"M2 projected clip r={rank}", "m2-projected-clip", rank, None
    yield "M1 r=16", "m1", 16, None
    yield "M2 as published r=16", "m2", 16, "good-event"
    yield "LoRA-FA r=16", "lora-fa", 16, None


def run_of(steps):
    from privproj.training.plan import GRID

    return {"steps": steps, "sampling_rate": -(-(BATCH / 1347) // GRID) * GRID}


@cache
def noise(algorithm, rank, bound, epsilon, steps):
    """The noise multiplier, and what the choice says of it: noise over DP-SGD's, projection error of the run."""
    import privproj

    run, target = run_of(steps), {"epsilon": epsilon, "delta": DELTA}
    layer = privproj.Layer(dim=FEATURES, rank=rank or 1, columns=10)
    (row, *_) = (r for r in privproj.choose(layers=layer, **target, **run)
                 if r.algorithm == (algorithm if algorithm != "lora-fa" else "dp-sgd"))  # fmt: skip
    z, over, error = row.result.value, row.worth.noise_over_dp_sgd, row.worth.projection_error_of_run
    if bound:
        published = privproj.sigma(privproj.M2(dim=FEATURES, rank=rank, columns=10), bound=bound, **target, **run).value
        return published, over * published / z, error
    return (z, over, error) if algorithm != "lora-fa" else (z, 1.0, math.inf)


@cache
def records():
    """Features and labels of the training records and of those that are kept."""
    import torch

    from privproj.training import classifier

    data = classifier.load("digits")
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(data.x.shape[1], FEATURES, generator=draw)
    lift = lambda x: torch.relu(x @ weights) / math.sqrt(FEATURES)  # noqa: E731
    return lift(data.x), data.y, lift(data.test_x), data.test_y


def accuracy(algorithm, rank, z, steps, clip, pace, seed):
    """Accuracy of one run, on the records to tune on with a tuning seed, else on those of the table."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    from privproj.training import Method, add_frozen_lora, make_private

    torch.set_num_threads(1)
    x, y, kept_x, kept_y = records()
    torch.manual_seed(seed)
    head = torch.nn.Linear(FEATURES, 10, bias=False)
    torch.nn.init.zeros_(head.weight)
    module = add_frozen_lora(head, rank, insecure_seed=seed) if algorithm == "lora-fa" else head
    trained = [p for p in module.parameters() if p.requires_grad]
    private, optimizer, batches = make_private(
        module=module, optimizer=torch.optim.SGD(trained, lr=pace / clip),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH), max_grad_norm=clip,
        algorithm=Method(algorithm, rank if algorithm in ("m1", "m2", "m2-projected-clip") else None),
        steps=steps, insecure_seed=seed, noise_multiplier=z, delta=DELTA,
    )  # fmt: skip
    while optimizer.steps < steps:
        for batch in batches:
            optimizer.step_on(lambda part: cross_entropy(private(part[0]), part[1], reduction="none"), batch)
    optimizer.close()
    seen = slice(TUNING) if seed in TUNING_SEEDS else slice(TUNING, KEPT)
    with torch.no_grad():
        return float((private(kept_x[seen]).argmax(1) == kept_y[seen]).float().mean())


def row_of(task, method):
    """Tune, then train with five other seeds."""
    (steps, epsilon), (label, algorithm, rank, bound) = task, method
    z, over, error = noise(algorithm, rank, bound, epsilon, steps)

    def tuned(clip, pace):
        return statistics.mean(accuracy(algorithm, rank, z, steps, clip, pace, seed) for seed in TUNING_SEEDS)

    tried = {pair: tuned(*pair) for pair in product(CLIPS, PACES)}
    while True:
        clip, pace = max(tried, key=lambda pair: tried[pair])
        missing = [(clip, near) for near in (0.25 * pace, 4.0 * pace) if (clip, near) not in tried]
        if not missing:
            break
        tried |= {pair: tuned(*pair) for pair in missing}
    found = [accuracy(algorithm, rank, z, steps, clip, pace, seed) for seed in SEEDS]
    return {"steps": steps, "epsilon": epsilon, "method": label, "noise_multiplier": z, "noise_over_dp_sgd": over,
            "projection_error_of_run": error if math.isfinite(error) else None, "clip": clip, "pace": pace,
            "accuracy": statistics.mean(found), "deviation": statistics.stdev(found)}  # fmt: skip


def print_rows(rows):
    print("| steps | epsilon | method | noise / DP-SGD's | missed by the run | accuracy | clip | rate x clip |")
    print("|" + " --- |" * 8)
    for row in rows:
        error = row["projection_error_of_run"]
        missed = "never averaged" if error is None else f"{error:.2g}"
        print(f"| {row['steps']} | {row['epsilon']:g} | {row['method']} | {row['noise_over_dp_sgd']:.3f} | {missed} | "
              f"{100 * row['accuracy']:.1f} ± {100 * row['deviation']:.1f} % | {row['clip']:g} | {row['pace']:g} |",
              flush=True)  # fmt: skip


DRAWN = ("DP-SGD", "M2 r=64", "M2 r=16", "M2 r=4", "M2 as published r=16", "LoRA-FA r=16")
"""What the picture shows."""


def draw(rows):
    """The picture of the docs: accuracy against epsilon, by method."""
    from privproj_cli.picture import draw

    short = [row for row in rows if row["steps"] == 300]
    epsilons = sorted({row["epsilon"] for row in short})
    found = {(row["method"], row["epsilon"]): 100 * row["accuracy"] for row in short}
    columns = {name: [found[name, epsilon] for epsilon in epsilons] for name in DRAWN}
    limits = {"yscale": "linear", "ylim": (70, 98), "xscale": "log", "xticks": epsilons, "xticklabels": epsilons}
    picture = Path(__file__).parents[1] / "docs" / "accuracy.svg"
    draw(str(picture), epsilons, columns, "epsilon", "accuracy in per cent", "Digits, 300 steps", **limits)


def main():
    with ProcessPoolExecutor(2) as pool:
        jobs = [pool.submit(row_of, task, method) for task in TASKS for method in methods()
                if task[0] == 300 or method[0] in LONG]  # fmt: skip
        rows = [job.result() for job in jobs]
    print_rows(rows)
    draw(rows)
    target = Path(__file__).parent / "results" / "digits.json"
    target.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
