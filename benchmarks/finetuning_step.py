"""A fine-tuning step of a small Llama: time and peak memory of plain torch, this package and Opacus' ghost clipping.

``python benchmarks/finetuning_step.py --keep`` prints ratios to plain torch and keeps the numbers as JSON under
``benchmarks/results/``. Every way has a process of its own, with one thread, and the ways of one case take turns step
by step, so that what else the machine does hits them alike. Memory is the largest number of bytes that torch's
allocator holds during a step beyond what it held before: by torch's profiler on a CPU, by the allocator's statistics on
a GPU.
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
    "lora-checkpointed": "LoRA of rank 16, both factors, with activation checkpointing",
    "blocks": "all linear weights of the blocks",
    "embeddings": "the token embeddings",
}
SIZES = {
    "cpu": {"width": 256, "layers": 4, "vocabulary": 2048, "tokens": 256, "batch": 4},
    "cuda": {"width": 1024, "layers": 8, "vocabulary": 16384, "tokens": 256, "batch": 16},
}
RANK = 16


def causal_model(case, size):
    """The model with the tensors of a case trained, and the names of those."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size["vocabulary"], hidden_size=size["width"], intermediate_size=size["width"] * 8 // 3,
        num_hidden_layers=size["layers"], num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=size["tokens"], use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if case == "lora-checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    if case.startswith("lora"):
        from peft import LoraConfig, get_peft_model

        from privproj.training import prepare_peft

        model = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear"))
        if case == "lora-fa":
            prepare_peft(model, "lora-fa")
        return model
    for name, parameter in model.named_parameters():
        inside = "embed_tokens" in name if case == "embeddings" else ".layers." in name and parameter.dim() == 2
        parameter.requires_grad_(inside)
    return model


def stepper(case, way, device):
    """A function that makes one step, on one batch of random tokens."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    size = SIZES[device]
    model = causal_model(case, size).to(device).train()
    ids = torch.randint(0, size["vocabulary"], (size["batch"], size["tokens"]))
    loader = DataLoader(TensorDataset(ids), batch_size=size["batch"])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    shape = size["batch"], size["tokens"] - 1

    def scores_and_targets(model, ids):
        return model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()

    def losses_of(batch):
        scores, targets = scores_and_targets(model, batch[0])
        return cross_entropy(scores, targets, reduction="none").view(-1, shape[1]).mean(1)

    if way == "plain":

        def plain_step():
            for (batch,) in loader:
                optimizer.zero_grad()
                losses_of([batch.to(device)]).mean().backward()
                optimizer.step()

        return plain_step
    if way == "opacus":
        return opacus_stepper(model, optimizer, loader, scores_and_targets, shape)
    from privproj.training import PoissonBatches, make_private

    _, private, private_loader = make_private(
        module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, noise_multiplier=1.0, steps=10**6,
        batches=PoissonBatches(rate=1.0), algorithm="lora-fa" if case == "lora-fa" else "dp-sgd",
    )  # fmt: skip

    def private_step():
        for batch in private_loader:
            private.step_on(losses_of, batch)  # which moves it

    return private_step


def opacus_stepper(model, optimizer, loader, scores_and_targets, shape):
    """A function that makes one step with Opacus' ghost clipping."""
    from opacus import PrivacyEngine
    from torch import nn

    device = next(model.parameters()).device
    private, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        poisson_sampling=False, grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss(),
    )  # fmt: skip

    def opacus_step():
        for (batch,) in loader:
            optimizer.zero_grad()
            criterion(*scores_and_targets(private, batch.to(device)), shape=shape).backward()
            optimizer.step()

    return opacus_step


def serve(case, way, device):
    """Build the case, then make one step for every line read and answer with its seconds; at the end the memory."""
    import torch

    torch.set_num_threads(1)
    step = stepper(case, way, device)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    wait()
    print("built", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        start = time.perf_counter()
        step()
        wait()
        print(time.perf_counter() - start, flush=True)
    print(added_memory(step, device), flush=True)


def added_memory(step, device):
    """The largest number of MiB that one step holds beyond what was held before."""
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
    """A process that makes steps of one way when it is told to."""

    def __init__(self, case, way, device):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        line = [sys.executable, __file__, "--serve", case, way, "--device", device]
        self.process = subprocess.Popen(
            line, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self.works = self.process.stdout.readline().strip() == "built"

    def ask(self, word):
        """The number that the process answers with; None once it has failed."""
        if self.works:
            try:
                self.process.stdin.write(word + "\n")
                self.process.stdin.flush()
                return float(self.process.stdout.readline())
            except (BrokenPipeError, ValueError):
                self.works = False
        return None


def take_turns(case, device, rounds, ways):
    """Median seconds of a step and the added memory of each way, their processes taking turns."""
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
    """The kind of processor that the numbers are from."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{platform.machine()}, {names[0].partition(':')[2].strip()}" if names else platform.machine()


if __name__ == "__main__":
    main()
