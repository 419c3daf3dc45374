"""Measure time and memory of a step of a small Llama and two plain networks: plain torch, privproj and Opacus.

Opacus uses ghost clipping for the Llama and per-example gradients for the plain networks, as its users do.

``python benchmarks/finetuning_step.py --keep`` prints ratios to plain torch and saves the numbers as JSON under
``benchmarks/results/``. Every implementation runs in a separate process with one thread. The implementations of one
case alternate step by step, so that other load on the machine affects them equally. Time is CPU time, or on a GPU wall
time. Memory is the peak of torch's allocator during a step, minus the memory that it held before. It is measured by
torch's profiler on a CPU, and by the allocator's statistics on a GPU.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

WAYS = ("plain", "privproj", "opacus")
CASES = {
    "lora": "LoRA of rank 16 on all linear layers, both factors trained",
    "lora-fa": "the same, B factors trained (LoRA-FA)",
    "lora-m2": "LoRA of rank 16, both factors trained through the weights by M2 of rank 8",
    "lora-checkpointed": "LoRA of rank 16, both factors, with activation checkpointing",
    "blocks": "all linear weights of the blocks",
    "embeddings": "the token embeddings",
    "mlp": "five linear layers, 1024 wide, 256 records",
    "mlp-m2": "the same, trained by M2 of rank 16",
    "cnn": "two convolutions and a linear layer, 128 images of 32 x 32",
}
PLAIN_NETWORKS = ("mlp", "mlp-m2", "cnn")
NETWORK = {"units": 1024, "records": 256}
SIZES = {
    "cpu": {"width": 256, "layers": 4, "vocabulary": 2048, "tokens": 128, "batch": 16, **NETWORK},
    "cuda": {"width": 1024, "layers": 8, "vocabulary": 16384, "tokens": 256, "batch": 16, **NETWORK},
}
RANK = 16


def causal_model(case, size):
    """Return a small Llama with the trained tensors of a case, and one batch of random texts."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size["vocabulary"], hidden_size=size["width"], intermediate_size=size["width"] * 8 // 3,
        num_hidden_layers=size["layers"], num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=size["tokens"], use_cache=False,
    )  # fmt: skip
    model, texts = LlamaForCausalLM(config), (torch.randint(0, size["vocabulary"], (size["batch"], size["tokens"])),)
    if case == "lora-checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    if case.startswith("lora"):
        from peft import LoraConfig, get_peft_model

        from privproj.training import prepare_peft

        model = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear"))
        if case == "lora-fa":
            prepare_peft(model, "lora-fa")
        return model, texts
    for name, parameter in model.named_parameters():
        inside = "embed_tokens" in name if case == "embeddings" else ".layers." in name and parameter.dim() == 2
        parameter.requires_grad_(inside)
    return model, texts


def plain_network(case, size):
    """Return the network of a case, and one batch of random records with labels."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if case != "cnn":
        units = size["units"]
        layers = [part for _ in range(4) for part in (nn.Linear(units, units), nn.ReLU())]
        model, x = nn.Sequential(*layers, nn.Linear(units, 10)), torch.randn(size["records"], units)
    else:
        model, x = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
        ), torch.randn(128, 3, 32, 32)  # fmt: skip
    return model, (x, torch.randint(0, 10, (len(x),)))


def stepper(case, way, device):
    """Return a function that makes one training step on random records."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    is_text, size = case not in PLAIN_NETWORKS, SIZES[device]
    model, data = (causal_model if is_text else plain_network)(case, size)
    model = model.to(device).train()
    loader = DataLoader(TensorDataset(*data), batch_size=len(data[0]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def scores_and_targets(model, batch):
        if not is_text:
            return model(batch[0]), batch[1]
        return model(batch[0]).logits[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten()

    def loss_of(batch):
        return cross_entropy(*scores_and_targets(model, batch))

    if way == "plain":

        def plain_step():
            for batch in loader:
                optimizer.zero_grad()
                loss_of([part.to(device) for part in batch]).backward()
                optimizer.step()

        return plain_step
    if way == "opacus":
        return opacus_stepper(model, optimizer, loader, scores_and_targets, size if is_text else None)
    from privproj.training import Method, PoissonBatches, make_private

    _, private, private_loader = make_private(
        module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, noise_multiplier=1.0, steps=10**6,
        batches=PoissonBatches(rate=1.0),
        algorithm={
            "lora-fa": "lora-fa", "lora-m2": Method("m2", RANK // 2), "mlp-m2": Method("m2", RANK),
        }.get(case, "dp-sgd"),
    )  # fmt: skip

    def private_step():
        for batch in private_loader:
            private.step_on(loss_of, batch)  # moves the batch to the device

    return private_step


def opacus_stepper(model, optimizer, loader, scores_and_targets, size):
    """Return a function that makes one step with Opacus.

    ``size`` is given for texts only, for which Opacus uses ghost clipping.
    """
    from opacus import PrivacyEngine
    from torch import nn

    device = next(model.parameters()).device
    criterion, ghost = nn.CrossEntropyLoss(), {"grad_sample_mode": "ghost"} if size else {}
    private, optimizer, *others = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        poisson_sampling=False, criterion=criterion, **ghost,
    )  # fmt: skip
    shape = {"shape": (size["batch"], size["tokens"] - 1)} if size else {}
    criterion = others[0] if size else criterion

    def opacus_step():
        for batch in loader:
            optimizer.zero_grad()
            criterion(*scores_and_targets(private, [part.to(device) for part in batch]), **shape).backward()
            optimizer.step()

    return opacus_step


def serve(case, way, device):
    """Make a step for each line of standard input, and print its seconds.

    The line "end" prints the memory that a step adds, in MiB, and ends the loop.
    """
    import torch

    torch.set_num_threads(1)
    step = stepper(case, way, device)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    clock = time.perf_counter if device == "cuda" else time.process_time
    wait()
    print("built", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        start = clock()
        step()
        wait()
        print(clock() - start, flush=True)
    print(added_memory(step, device), flush=True)


def added_memory(step, device):
    """Return the peak memory of one step in MiB, minus the memory before the step."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(itertools.accumulate(sizes)) / 2**20


class Child:
    """A process that makes steps by one implementation on request."""

    def __init__(self, case, way, device):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        line = [sys.executable, __file__, "--serve", case, way, "--device", device]
        self.process = subprocess.Popen(
            line, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self.works = self.process.stdout.readline().strip() == "built"

    def ask(self, word):
        """Return the number that the process prints for a request; None if the process failed."""
        if self.works:
            try:
                self.process.stdin.write(word + "\n")
                self.process.stdin.flush()
                return float(self.process.stdout.readline())
            except (BrokenPipeError, ValueError):
                self.works = False
        return None


def take_turns(case, device, rounds, ways):
    """Return the median seconds of a step and the memory it adds, for each implementation.

    The processes of the implementations alternate step by step.
    """
    children = {way: Child(case, way, device) for way in ways}
    seconds = {way: [] for way in ways}
    for number in range(rounds + 2):
        for way, child in children.items():
            found = child.ask("step")
            if number >= 2:
                seconds[way].append(found)
    answers = {}
    for way, child in children.items():
        memory = child.ask("end")
        child.process.stdin.close()
        child.process.wait()
        answers[way] = {"seconds": statistics.median(seconds[way]), "mebibytes": memory} if child.works else None
    return answers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--serve", nargs=2)
    parser.add_argument("--keep", action="store_true", help="keep the numbers as JSON")
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve, given.device)
        return
    found = {}
    print(f"{'case':<20} {'way':<10} {'ms/step':>9} {'/ plain':>8} {'MiB':>8} {'/ plain':>8}")
    for case in given.cases:
        found[case] = take_turns(case, given.device, given.rounds, given.ways)
        plain = found[case][given.ways[0]]
        for way, row in found[case].items():
            if row is None:
                print(f"{case:<20} {way:<10} failed")
                continue
            ratios = [row[key] / plain[key] for key in ("seconds", "mebibytes")]
            print(
                f"{case:<20} {way:<10} {1e3 * row['seconds']:>9.1f} {ratios[0]:>8.2f} {row['mebibytes']:>8.1f} "
                f"{ratios[1]:>8.2f}",
                flush=True,
            )
    if given.keep:
        setting = {
            **SIZES[given.device],
            "rank": RANK,
            "threads": 1,
            "rounds": given.rounds,
            "device": kind(given.device),
        }
        target = Path(__file__).parent / "results" / f"finetuning_step_{given.device}.json"
        target.write_text(json.dumps({"setting": setting, "cases": CASES, "found": found}, indent=2) + "\n")


def kind(device):
    """Return the name of the GPU or of the CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{platform.machine()}, {names[0].partition(':')[2].strip()}" if names else platform.machine()


if __name__ == "__main__":
    main()
