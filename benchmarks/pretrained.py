"""Measure the accuracy of private fine-tuning of a pretrained sentence encoder at epsilon 1, 3 and 8, five seeds.

``python benchmarks/pretrained.py FOLDER [METHOD ...]`` appends each result to ``benchmarks/results/pretrained.jsonl``,
resumes after an interruption, and prints the table. FOLDER contains the two archives of
``examples/pretrained_encoder.py``, which documents the sources of the encoder and the texts. The outputs of the frozen
layers are saved there too.

The task is that of the example, with one split for all seeds: 7,000 snippets of at most 24 tokens for training, 1,000
for tuning and 2,568 for testing. LoRA of rank 16 is applied to all linear layers of the last of six blocks. All layers
below are frozen, and their outputs are computed once. Every method also trains the head. All methods make the same
number of steps by SGD with momentum, without dropout, on batches of the same expected size.

Clipping norm and learning rate of a method are tuned on the 1,000 snippets at epsilon 3, with a seed that the table
does not use. The range of learning rates is extended by factors of four until the best value is inside. LoRA is tuned
at query and value only, which takes less time. A real run would have to account for this tuning, or tune on public
records. LoRA without privacy is trained by Adam, because SGD with momentum diverges without clipping.
"""

import copy
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from accuracy import tune
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset

from privproj.accounting.schedule import dp_sft
from privproj.training import Method, PrismLinear, Steps, Trajectory, add_prism, make_private, prepare_peft

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from pretrained_encoder import read  # pyright: ignore[reportMissingImports]

TARGET = Path(__file__).parent / "results" / "pretrained.jsonl"
EPSILONS, SEEDS, TUNED_AT, TUNING_SEED, DELTA = (1.0, 3.0, 8.0), range(5), 3.0, 100, 1e-5
KEPT, TUNING, BATCH, STEPS, RANK, LAYERS, MOMENTUM = 2568, 1000, 200, 40, 16, 1, 0.9
ADAPTED, TUNED_ON = ("query", "key", "value", "dense"), ("query", "value")
ADAM = 0.002, 0.03  # learning rates of factors and head
# private methods and their algorithms
PRIVATE = {"head": "dp-sgd", "head, all records": "dp-sgd", "head, m2": "m2", "lora": "dp-sgd", "lora-fa": "lora-fa",
           "m2": "m2", "prism": "prism", "dp-sft": "dp-sft"}  # fmt: skip

CLIPS = (0.1, 1.0)
# First values of learning rate times clipping norm (without privacy: of the learning rate). LoRA without privacy uses
# those of ``ADAM``. The momentum of PRISM is an average, so its learning rates are effectively ten times smaller.
PACES = {
    "head, no privacy": (0.5, 2.0), "head": (0.5, 2.0), "head, all records": (0.5, 2.0), "head, m2": (0.25, 1.0),
    "lora, no privacy": (), "lora": (0.15, 0.6), "lora-fa": (0.5, 2.0), "m2": (0.05, 0.2), "prism": (5.0, 20.0),
    "dp-sft": (0.15, 0.6),
}  # fmt: skip


class Top(nn.Module):
    """The last layers of the encoder, the mean over tokens, and a head."""

    def __init__(self, encoder):
        super().__init__()
        self.layers, self.head = copy.deepcopy(encoder.encoder.layer[-LAYERS:]), new_head()

    def forward(self, states, mask):
        """Return the scores of the classes, from the outputs ``states`` of the layers below."""
        for layer in self.layers:
            states = layer(states, mask[:, None, None, :])
        return self.head(pooled(states, mask))


def new_head():
    """Return a linear head for two classes with zero weights."""
    head = nn.Linear(384, 2, bias=False)
    nn.init.zeros_(head.weight)
    return head


def pooled(states, mask):
    """Return the mean over the tokens of each text, normalized to length one."""
    return normalize((states * mask[:, :, None]).sum(1), dim=1)


def problem(folder):
    """Return the encoder, the data for the last layers, and the data for a head alone.

    Each data set has inputs and labels. The outputs of the frozen layers are cached in the folder.
    """
    encoder, tokens, labels = read(folder)
    kept = folder / f"frozen_outputs_{LAYERS}.pt"
    if not kept.exists():
        low, high = [], []
        with torch.no_grad():
            for part in tokens.split(256):
                found = encoder.eval()(part, attention_mask=part != 0, output_hidden_states=True).hidden_states
                low.append(found[-1 - LAYERS])
                high.append(pooled(found[-1], part != 0))
        torch.save(((torch.cat(low), tokens != 0, labels), (torch.cat(high), labels)), kept)
    return encoder, *torch.load(kept)


def adapted(encoder, name, targets, seed):
    """Return a fresh module in which only the tensors of the method are trained."""
    torch.manual_seed(seed)
    if name.startswith("head"):
        return new_head()
    module = Top(encoder).eval()
    if name == "prism":
        steps = Steps(kind="plain", momentum=MOMENTUM)
        module = add_prism(module, RANK, steps=steps, where=lambda n, _: n.endswith(targets), insecure_seed=seed)
        module.head = add_prism(new_head(), 2, steps=steps, insecure_seed=seed + 1)  # all of a matrix with two rows
        for part in module.modules():
            if isinstance(part, PrismLinear):
                for factor in (part.u, part.s, part.v):
                    factor.requires_grad_(True)
        return module
    lora = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(targets), modules_to_save=["head"])
    module = get_peft_model(module, lora).eval()
    return prepare_peft(module, name) if name in ("lora-fa", "m2") else module


def train(module, data, clip, rate, seed, algorithm, steps, batch, noise, look=None, **more):
    """Make all steps; return the private optimizer, and ``look(optimizer)`` from before the first step."""
    trained = [p for p in module.parameters() if p.requires_grad]
    momentum = 0.0 if algorithm == "prism" else MOMENTUM
    module, optimizer, batches = make_private(
        module=module, optimizer=torch.optim.SGD(trained, lr=rate, momentum=momentum),
        data_loader=DataLoader(TensorDataset(*data), batch_size=batch), max_grad_norm=clip,
        algorithm=Method(algorithm, **more), steps=steps, insecure_seed=seed, **noise,
    )  # fmt: skip
    seen = look(optimizer) if look else None
    while len(batches):
        for drawn in batches:
            optimizer.step_on(lambda record: cross_entropy(module(*record[:-1]), record[-1]), drawn)
    optimizer.close()
    return optimizer, seen


def train_privately(module, data, name, epsilon, clip, rate, seed):
    """Train a module by a private method, and return the epsilon of all releases."""
    algorithm, steps, noise, more = PRIVATE[name], STEPS, {"epsilon": epsilon, "delta": DELTA}, {}
    batch = len(data[-1]) if name == "head, all records" else BATCH
    if algorithm == "m2":
        more = {"rank": RANK}
    if algorithm == "dp-sft":
        steps = STEPS // 2
        plan = dp_sft(**noise, sampling_rate=BATCH / len(data[-1]), steps=(steps, steps))
        search = {"noise_multiplier": plan.phases[0].mechanism.noise_multiplier}
        _, path = train(module, data, clip, rate, seed, "dp-sgd", steps, batch, search, lambda o: Trajectory(o, RANK))
        more, seed = {"subspace": path.subspace()}, seed + 1000
    optimizer, _ = train(module, data, clip, rate, seed, algorithm, steps, batch, noise, **more)
    spent = optimizer.epsilon(DELTA).value
    assert spent <= epsilon
    return spent


def train_plainly(module, data, rate):
    """Train a module without clipping and noise."""
    trained = {name: part for name, part in module.named_parameters() if part.requires_grad}
    if len(trained) == 1:
        optimizer = torch.optim.SGD(trained.values(), lr=rate, momentum=MOMENTUM)
    else:
        heads = [{"params": part, "lr": ADAM["head" in name]} for name, part in trained.items()]
        optimizer = torch.optim.Adam(heads)
    for _ in range(STEPS):
        chosen = torch.rand(len(data[-1])) < BATCH / len(data[-1])
        *inputs, labels = (part[chosen] for part in data)
        optimizer.zero_grad()
        cross_entropy(module(*inputs), labels).backward()
        optimizer.step()


def row(setting, method, epsilon, clip, pace, seed):
    """Train one model, and return its row with the accuracy.

    The tuning seed is evaluated on the snippets for tuning, any other seed on the test snippets.
    """
    encoder, states, features = setting
    start, data = time.process_time(), features if method.startswith("head") else states
    module, spent = adapted(encoder, method, TUNED_ON if seed == TUNING_SEED else ADAPTED, seed), None
    training = tuple(part[KEPT + TUNING :] for part in data)
    if method in PRIVATE:
        spent = train_privately(module, training, method, epsilon, clip, pace / clip, seed)
    else:
        train_plainly(module, training, pace)
    seen = slice(KEPT, KEPT + TUNING) if seed == TUNING_SEED else slice(KEPT)
    with torch.no_grad():
        parts = zip(*(part[seen].split(256) for part in data), strict=True)
        right = torch.cat([module(*part[:-1]).argmax(1) == part[-1] for part in parts])
    return {"method": method, "epsilon": epsilon, "clip": clip, "pace": pace, "seed": seed, "spent": spent,
            "accuracy": float(right.float().mean()), "seconds": round(time.process_time() - start, 1)}  # fmt: skip


def read_rows():
    """Return the rows of earlier runs."""
    return [json.loads(line) for line in TARGET.read_text().splitlines()] if TARGET.exists() else []


def accuracy(setting, **requested):
    """Return the accuracy of one model, from the file of results or by training it."""
    for done in read_rows():
        if requested.items() <= done.items():
            return done["accuracy"]
    found = row(setting, **requested)
    with TARGET.open("a") as file:
        file.write(json.dumps(found) + "\n")
    return found["accuracy"]


def tuned(setting, name):
    """Return the clipping norm and the pace (learning rate times clipping norm) of a method."""
    epsilon, first = (TUNED_AT, CLIPS) if name in PRIVATE else (None, (1.0,))

    def mean_of(clip, pace):
        return accuracy(setting, method=name, epsilon=epsilon, clip=clip, pace=pace, seed=TUNING_SEED)

    return tune(mean_of, first, PACES[name]) if PACES[name] else (1.0, ADAM[0])


def print_table(rows):
    """Print mean and standard deviation over the seeds for every method and epsilon."""
    print("| method | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " | no privacy | clip | rate x clip | s |")
    print("|" + " --- |" * 8)
    for name in PACES:
        own = [row for row in rows if row["method"] == name and row["seed"] in SEEDS]
        if not own:
            continue
        shown = []
        for epsilon in (*EPSILONS, None):
            found = [100 * row["accuracy"] for row in own if row["epsilon"] == epsilon]
            spread = statistics.stdev(found) if len(found) > 1 else math.nan
            missing = "" if len(found) == len(SEEDS) else f" ({len(found)} seeds)"
            shown.append(f"{statistics.mean(found):.1f} ± {spread:.1f} %{missing}" if found else "-")
        clip = f"{own[0]['clip']:g}" if name in PRIVATE else "-"
        seconds = statistics.median(row["seconds"] for row in own)
        print(f"| {name} | " + " | ".join(shown) + f" | {clip} | {own[0]['pace']:g} | {seconds:.0f} |")


def main():
    """Train the models that are missing, for all methods or for the named ones.

    All methods are trained with one seed before the next seed.
    """
    setting, names = problem(Path(sys.argv[1])), sys.argv[2:] or list(PACES)
    torch.set_num_threads(1)
    chosen = {name: tuned(setting, name) for name in names}
    for seed in SEEDS:
        for name in names:
            clip, pace = chosen[name]
            for epsilon in EPSILONS if name in PRIVATE else (None,):
                accuracy(setting, method=name, epsilon=epsilon, clip=clip, pace=pace, seed=seed)
    print_table(read_rows())


if __name__ == "__main__":
    main()
