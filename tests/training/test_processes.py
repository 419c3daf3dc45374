"""Several processes: noise once, uneven and empty shares, one ledger, the same law as one process."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import needs
from privproj_cli.main import exit_code
from scipy import stats

from privproj.records.ledger import read

needs("torch", "opacus")

RUN = """
import json, os, sys
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from privproj.training import add_prism, make_private
from privproj.training.processes import joined

torch.set_num_threads(1)
options = json.loads(sys.argv[1])
rank = joined().rank
draw = torch.Generator().manual_seed(0)
x = torch.randn(options.pop("records"), 6, generator=draw, dtype=torch.float64)
y = torch.randint(0, 3, (len(x),), generator=draw)
torch.manual_seed(0 if "WORLD_SIZE" not in os.environ else rank)
module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
if options["algorithm"] == "prism":
    module = add_prism(module, 2, insecure_seed=3)
parameters = [p for p in module.parameters() if p.requires_grad]
module, optimizer, loader = make_private(
    module=module, optimizer=torch.optim.SGD(parameters, lr=1.0), data_loader=DataLoader(TensorDataset(x, y)),
    max_grad_norm=1.0, **options,
)
start = torch.cat([p.detach().flatten() for p in module.parameters()])
sizes = []
while optimizer.steps < options["steps"]:
    for a, b in loader:
        sizes.append(len(a))
        for part in torch.arange(len(a)).split(3):
            optimizer.backward(cross_entropy(module(a[part]), b[part], reduction="none"))
        optimizer.step()
end = torch.cat([p.detach().flatten() for p in module.parameters()])
with open(sys.argv[2] + str(rank), "w") as file:
    result = {"sizes": sizes, "start": start.tolist(), "end": end.tolist(), "epsilon": optimizer.epsilon(1e-5).value}
    json.dump(result, file)
"""
OPTIONS = {"algorithm": "m2", "rank": 2, "noise_multiplier": 0.5, "steps": 6, "sampling_rate": 0.2, "records": 14}


def torchrun(processes, *command):
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *command]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def ran(tmp_path, processes, **more):
    """What every process of a run says, in the order of their ranks."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    options = json.dumps({**OPTIONS, **more})
    out = str(tmp_path / f"of{processes}-")
    if processes == 1:
        subprocess.run([sys.executable, script, options, out], check=True)
    else:
        torchrun(processes, str(script), options, out)
    return [json.loads(Path(f"{out}{rank}").read_text()) for rank in range(processes)]


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["m2", "dp-sgd", "prism"])
def test_two_processes_with_one_seed_do_what_one_does(tmp_path, algorithm):
    options = {"algorithm": algorithm, "rank": 2 if algorithm == "m2" else None, "insecure_seed": 7}
    (one,) = ran(tmp_path, 1, **options)
    first, second = ran(tmp_path, 2, **options, ledger=str(tmp_path / "ledger.jsonl"))
    assert [a + b for a, b in zip(first["sizes"], second["sizes"], strict=True)] == one["sizes"]
    assert first["sizes"] != second["sizes"] and 0 in second["sizes"] + first["sizes"]
    assert first["start"] == second["start"] == pytest.approx(one["start"], rel=0, abs=0)
    assert first["end"] == second["end"] == pytest.approx(one["end"], rel=1e-9, abs=1e-12)
    assert first["end"] != first["start"] and read(tmp_path / "ledger.jsonl").spent == 6


@pytest.mark.full
def test_every_process_knows_what_the_ledger_knows(tmp_path):
    """A second phase on one ledger: the epsilon of both, in every process."""
    options = {"algorithm": "dp-sgd", "rank": None, "steps": 2, "ledger": str(tmp_path / "ledger.jsonl")}
    first = ran(tmp_path, 2, **options, noise_multiplier=2.0)
    second = ran(tmp_path, 2, **options, noise_multiplier=3.0)
    assert first[0]["epsilon"] == first[1]["epsilon"] < second[0]["epsilon"] == second[1]["epsilon"]
    assert second[0]["epsilon"] == read(tmp_path / "ledger.jsonl").epsilon(1e-5).value


@pytest.mark.full
def test_the_noise_of_two_processes_is_that_of_one(tmp_path):
    """Nothing but noise: the moves of a DP-SGD run on one record, whose part is clipped to next to nothing."""
    found = []
    for processes in (1, 2):
        options = {"algorithm": "dp-sgd", "rank": None, "noise_multiplier": 1e6, "steps": 8, "sampling_rate": 1.0}
        row = ran(tmp_path, processes, **options)[0]
        found.append((np.array(row["end"]) - np.array(row["start"])) / (1e6 * np.sqrt(8) / 14))
    assert stats.ks_2samp(*found).pvalue > 1e-3
    assert all(stats.kstest(row, "norm").pvalue > 1e-3 for row in found)


@pytest.mark.full
def test_the_command_runs_on_two_processes_and_resumes(tmp_path, capsys):
    command = str(Path(sys.executable).with_name("privproj"))
    line = shlex.split("train --data digits --mechanism m2 --rank 8 --epsilon 8 --steps 12 --batch-size 200 --json")
    folder = tmp_path / "run"
    out = torchrun(2, command, *line, "-o", str(folder))
    found = json.loads(out)
    assert found["epsilon"] <= 8.0 and found["steps"] == 12 and read(folder / "ledger.jsonl").spent == 12
    assert exit_code(["train", "--resume", str(folder), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["epsilon"], again["test_accuracy"]) == (found["epsilon"], found["test_accuracy"])
