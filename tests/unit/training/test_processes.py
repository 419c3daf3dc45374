"""Several processes: noise once, uneven and empty shares, one ledger, the same law as one process."""

import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import needs
from privproj_cli.main import exit_code
from scipy import stats

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import read_ledger

torch = needs("torch", "opacus")

RUN = """
import json, os, sys
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from unit.training.helpers import data, make_private, own  # noqa: E402

from privproj.training import AdaptiveClipping, add_prism
from privproj.training.processes import join_processes

torch.set_num_threads(1)
rank, device = join_processes(torch.device("cpu")).rank, sys.argv[3]


def own(module):
    return lambda record: cross_entropy(module(record[0]), record[1])


def done(options):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(options.pop("records"), 6, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (len(x),), generator=draw)
    torch.manual_seed(0 if "WORLD_SIZE" not in os.environ else rank)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    if options["algorithm"] == "prism":
        module = add_prism(module, 2, insecure_seed=3)
    if "adaptive_clipping" in options:
        options["adaptive_clipping"] = AdaptiveClipping(**options["adaptive_clipping"])
    module = module.to(device)
    parameters = [p for p in module.parameters() if p.requires_grad]
    module, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.SGD(parameters, lr=1.0), data_loader=DataLoader(TensorDataset(x, y)),
        max_grad_norm=1.0, **options,
    )
    start = torch.cat([p.detach().flatten() for p in module.parameters()])
    sizes = []
    while optimizer.steps_done < options["steps"]:
        for batch in loader:
            sizes.append(sum(group.records for group in batch._groups))
            optimizer.step_on(own(module), batch, 3)
    end = torch.cat([p.detach().flatten() for p in module.parameters()])
    epsilon = optimizer.epsilon(1e-5).value
    optimizer.close()
    return {"sizes": sizes, "start": start.tolist(), "end": end.tolist(), "epsilon": epsilon, "clip": optimizer.clip}


found = {name: done(options) for name, options in json.loads(sys.argv[1]).items()}
with open(sys.argv[2] + str(rank), "w") as file:
    json.dump(found, file)
"""
OPTIONS = {"algorithm": "m2", "rank": 2, "noise_multiplier": 0.5, "steps": 6, "sampling_rate": 0.2, "records": 14}
SEEDED = ("m2", "dp-sgd", "prism", "balls-in-bins", "adaptive")


TESTS = str(Path(__file__).parents[2])


def torchrun(*command):
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_pair(script, *arguments):
    """Run a program in two processes, as ``torchrun`` would start them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, script, *arguments],
            env={**os.environ, **place, "PYTHONPATH": TESTS, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]
    assert [process.wait(timeout=300) for process in started] == [0, 0]


def run_here(script, *arguments):
    """Run a program in this process, which has torch already."""
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setattr(sys, "argv", [str(script), *arguments])
        runpy.run_path(str(script))


def jobs(folder, processes):
    """Every run by its name; those with a ledger of their own are of two processes."""
    seeded = {name: {"algorithm": name, "rank": 2 if name == "m2" else None, "insecure_seed": 6} for name in SEEDED}
    seeded["balls-in-bins"] |= {
        "algorithm": "dp-sgd", "sampling": "balls-in-bins", "batches": 6, "sampling_rate": None
    }  # fmt: skip
    seeded["adaptive"] |= {"algorithm": "dp-sgd", "adaptive_clipping": {"sigma": 1.0}}
    phase = {"algorithm": "dp-sgd", "rank": None, "steps": 2, "ledger": str(folder / "phases.jsonl")}
    loud = {"algorithm": "dp-sgd", "rank": None, "noise_multiplier": 1e6, "steps": 8, "sampling_rate": 1.0}
    found = {**seeded, "noise": loud}
    if processes == 2:
        found = {name: {**options, "ledger": str(folder / f"{name}.jsonl")} for name, options in found.items()}
        found |= {"first": {**phase, "noise_multiplier": 2.0}, "second": {**phase, "noise_multiplier": 3.0}}
    return {name: {**OPTIONS, **options} for name, options in found.items()}


on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=on_gpu)])
def ran(request, tmp_path_factory):
    """What every process says of every run, by their number, in the order of their ranks; and where the ledgers are."""
    folder = tmp_path_factory.mktemp("runs")
    script = folder / "run.py"
    script.write_text(RUN)
    out = {count: str(folder / f"of{count}-") for count in (1, 2)}
    run_here(script, json.dumps(jobs(folder, 1)), out[1], request.param)
    run_pair(script, json.dumps(jobs(folder, 2)), out[2], request.param)
    found = {count: [json.loads(Path(f"{out[count]}{rank}").read_text()) for rank in range(count)] for count in out}
    return found, folder


@pytest.mark.full
@pytest.mark.parametrize("algorithm", SEEDED)
def test_two_processes_with_one_seed_do_what_one_does(ran, algorithm):
    found, folder = ran
    (one,), (first, second) = ([rank[algorithm] for rank in found[count]] for count in (1, 2))
    assert [a + b for a, b in zip(first["sizes"], second["sizes"], strict=True)] == one["sizes"]
    assert first["sizes"] != second["sizes"] and 0 in second["sizes"] + first["sizes"]
    assert first["start"] == second["start"] == pytest.approx(one["start"], rel=0, abs=0)
    assert first["end"] == second["end"] == pytest.approx(one["end"], rel=1e-9, abs=1e-12)
    assert first["clip"] == second["clip"] == pytest.approx(one["clip"], rel=1e-9)
    assert (first["clip"] == 1.0) is (algorithm != "adaptive")
    assert first["end"] != first["start"] and read_ledger(folder / f"{algorithm}.jsonl").spent == 6


@pytest.mark.full
def test_every_process_knows_what_the_ledger_knows(ran):
    """A second phase on one ledger: the epsilon of both, in every process."""
    found, folder = ran
    first, second = ([rank[name]["epsilon"] for rank in found[2]] for name in ("first", "second"))
    assert first[0] == first[1] < second[0] == second[1]
    assert second[0] == read_ledger(folder / "phases.jsonl").epsilon(1e-5).value


@pytest.mark.full
def test_noise_of_two_processes_is_that_of_one(ran):
    """Nothing but noise: the moves of a DP-SGD run on one record, whose part is clipped to next to nothing."""
    rows = [ran[0][count][0]["noise"] for count in (1, 2)]
    moves = [(np.array(row["end"]) - np.array(row["start"])) / (1e6 * np.sqrt(8) / 14) for row in rows]
    assert stats.ks_2samp(*moves).pvalue > 1e-3
    assert all(stats.kstest(move, "norm").pvalue > 1e-3 for move in moves)


several = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=several)])
def test_command_runs_on_two_processes_and_resumes(tmp_path, capsys, device):
    command = str(Path(sys.executable).with_name("privproj"))
    line = shlex.split("train --data digits --mechanism m2 --rank 8 --epsilon 8 --steps 12 --batch-size 200 --json")
    folder = tmp_path / "run"
    out = torchrun(command, *line, "--device", device, "-o", str(folder))
    found = json.loads(out)
    assert found["epsilon"] <= 8.0 and found["steps"] == 12 and read_ledger(folder / "ledger.jsonl").spent == 12
    assert exit_code(["train", "--resume", str(folder), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["epsilon"], again["test_accuracy"]) == (found["epsilon"], found["test_accuracy"])


def test_processes_exchange_tensors_in_few_calls(monkeypatch):
    """Two processes that hold the same: twice of every tensor, whatever its shape, type and place in memory."""
    from privproj.training import processes

    sizes = []
    monkeypatch.setattr(processes, "BUCKET", 8 * 50)
    monkeypatch.setattr(processes.distributed, "all_reduce", lambda bucket: sizes.append(bucket.mul_(2).numel()))
    shapes = [(), (3, 4), (0, 2), (60,), (5, 5), (10,), (7,)]
    parts = [torch.rand(shape, dtype=torch.float64) for shape in shapes]
    parts += [torch.rand(4, 6).T, torch.rand(3)]
    kept = [part.clone() for part in parts]
    found = processes.Processes(0, 2).sum(parts)
    assert all(torch.equal(one, 2 * other) for one, other in zip(found, kept, strict=True))
    assert sizes == [13, 60, 42, 27] and found is parts


def test_each_of_several_processes_takes_the_gpu_of_its_number(monkeypatch):
    from privproj.training.processes import own_device

    assert own_device(torch.device("cuda")) == torch.device("cuda")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device(torch.device("cuda")) == torch.device("cuda", 3)
    assert own_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(InvalidParameterError, match="Each of several processes uses its own GPU"):
        own_device(torch.device("cuda", 1))


def tell(monkeypatch, message):
    """Let a second process say this at every place where both meet."""

    def gathered(values, own):
        values[:] = [own, message(own[0])]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)


def test_where_another_process_fails_this_one_fails(monkeypatch):
    from privproj.training.processes import Processes

    tell(monkeypatch, lambda place: (place, "a full disk"))
    with pytest.raises(UnsupportedError, match="process 1 of 2 stopped: a full disk"), Processes(0, 2).together():
        pass
    with pytest.raises(ZeroDivisionError), Processes(0, 2).together():
        raise ZeroDivisionError


def test_processes_that_come_to_different_places_are_stopped(monkeypatch):
    from privproj.training.processes import Processes

    tell(monkeypatch, lambda _: ("elsewhere", None))
    with pytest.raises(UnsupportedError, match="different places"), Processes(0, 2).together():
        pass
    with pytest.raises(UnsupportedError, match="different places"):
        Processes(0, 2).check_same({"steps": 1})


AHEAD = """
import json, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.functional import cross_entropy
from privproj.training import make_private
from privproj.training.processes import join_processes

torch.set_num_threads(1)
rank = join_processes(torch.device("cpu")).rank
x, module, steps, message = torch.eye(40, 6), torch.nn.Linear(6, 3), 0, "nothing"
# Workers draw ahead, and what they have drawn is lost where a pass is left early.
loader = DataLoader(TensorDataset(x, torch.arange(40) % 3), batch_size=10, num_workers=rank * int(sys.argv[2]))
module, optimizer, loader = make_private(
    module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader, steps=20,
    algorithm="dp-sgd", max_grad_norm=1.0, noise_multiplier=1.0,
)
try:
    for _ in range(3):
        for batch in loader:
            optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
            if optimizer.steps_done % 2 == 0:
                break
except ValueError as error:
    message = str(error)
with open(f"{sys.argv[1]}/ahead-{rank}", "w") as file:
    json.dump([optimizer.steps_done, message], file)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "steps", "condition"),
    [(0, 6, "nothing"), (1, 2, "the same num_workers")],
)
def test_process_that_has_drawn_ahead_is_rejected(tmp_path, workers, steps, condition):
    """Shares of two batches would hold a record twice."""
    (tmp_path / "run.py").write_text(AHEAD)
    run_pair(str(tmp_path / "run.py"), str(tmp_path), str(workers))
    for rank in range(2):
        made, message = json.loads((tmp_path / f"ahead-{rank}").read_text())
        assert made == steps and condition in message


# --- processes that differ, and wrapped modules -----------------------------------------------------

DIFFERENT = """
import json, os, sys
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from unit.training.helpers import make_private, step

from privproj.training import Batch
from privproj.training.processes import join_processes

torch.set_num_threads(1)
processes = join_processes(torch.device("cpu"))
rank, folder, message = processes.rank, sys.argv[1], {}
x, y = torch.randn(14, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(14) % 3


def own(module):
    return lambda record: cross_entropy(module(record[0]), record[1])


def model(width=5, frozen=False):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, width), nn.LayerNorm(width), nn.Linear(width, 3)).double()
    module[0].requires_grad_(not frozen)
    return module


def made(module=None, records=14, lr=1.0, **options):
    module = module or model()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=lr)
    chosen = {"algorithm": "dp-sgd", "max_grad_norm": 1.0, "noise_multiplier": 1.0, "steps": 4, "sampling_rate": 0.5}
    data = DataLoader(TensorDataset(x[:records], y[:records]))
    return make_private(module=module, optimizer=optimizer, data_loader=data, **{**chosen, **options})


def moves(wrap):
    wrapper = wrap(model())
    if processes.size > 1:
        wrapper(x)  # without a backward pass a wrapper waits for gradients
    module, optimizer, _ = made(wrapper, noise_multiplier=1e-12, sampling_rate=1.0, insecure_seed=1)
    start = torch.cat([p.detach().flatten() for p in module.parameters()])
    for turn in range(3):
        rows = torch.arange(14)[rank::2] if turn == 2 else torch.arange(14 * (rank == turn))
        rows = rows if processes.size > 1 else torch.arange(14)
        step(module, optimizer, x[rows], y[rows])
    try:
        message["wrapper"] = str(wrapper(x).shape)
    except ValueError as error:
        message["wrapper"] = str(error)
    return (torch.cat([p.detach().flatten() for p in module.parameters()]) - start).tolist()


def again(book):
    module = model()
    for _ in range(2):
        _, optimizer, _ = made(module, steps=1, ledger=book)
        optimizer._turn.open(Batch([]))
        optimizer.step()
        optimizer.close()


CASES = {
    "max_grad_norm": lambda: made(max_grad_norm=1.0 + rank),
    "noise_multiplier": lambda: made(noise_multiplier=1.0 + rank),
    "epsilon": lambda: made(noise_multiplier=None, epsilon=1.0 + rank, delta=1e-5),
    "algorithm": lambda: made(algorithm=["dp-sgd", "projected-dp-sgd"][rank], rank=[None, 2][rank]),
    "mechanism": lambda: made(algorithm="m2", rank=2 + rank, clipping="per-layer"),
    "steps": lambda: made(steps=4 + rank),
    "sampling_rate": lambda: made(sampling_rate=0.5 - 0.25 * rank),
    "dataset_size": lambda: made(records=14 - rank),
    "insecure_seed": lambda: made(insecure_seed=[7, None][rank]),
    "module's 0.weight": lambda: made(model(5 + rank)),
    "trained": lambda: made(model(frozen=bool(rank))),
    "optimizer's groups": lambda: made(lr=1.0 + rank),
    "ledger": lambda: made(ledger=[None, folder + "/other.jsonl"][rank]),
    "damaged": lambda: made(ledger=[folder + "/damaged.jsonl", None][rank]),
    "calibrated": lambda: made(
        ledger=[folder + "/damaged.jsonl", None][rank], noise_multiplier=None, epsilon=1.0, delta=1e-5
    ),
    "DataParallel": lambda: made(nn.Sequential(DataParallel(model()))),
    "nothing": made,
    "a second start": lambda: again(None),
    "a second start with a ledger": lambda: again(folder + "/again.jsonl"),
}
if processes.size > 1:
    with open(folder + "/damaged.jsonl", "w") as file:
        file.write("no ledger")
    torch.distributed.barrier()
    for name, case in CASES.items():
        try:
            case()
            message[name] = "made"
        except Exception as error:
            message[name] = f"{type(error).__name__}: {error}"
message["moves"] = moves(DistributedDataParallel if processes.size > 1 else lambda module: module)
with open(f"{folder}/message-{rank}-of-{processes.size}", "w") as file:
    json.dump(message, file)
"""


@pytest.fixture(scope="module")
def message(tmp_path_factory):
    """What two processes say of each case, and what one process says of its moves."""
    folder = tmp_path_factory.mktemp("different")
    (folder / "run.py").write_text(DIFFERENT)
    run_here(folder / "run.py", str(folder))
    run_pair(folder / "run.py", str(folder))
    return [json.loads((folder / f"message-{name}").read_text()) for name in ("0-of-2", "1-of-2", "0-of-1")]


DIFFERENCES = {
    "max_grad_norm": "got 1.0 in process 0 and 2.0 in process 1",
    "noise_multiplier": "got 1.0 in process 0 and 2.0 in process 1",
    "epsilon": "got 1.0 in process 0 and 2.0 in process 1",
    "algorithm": "got dp-sgd in process 0 and projected-dp-sgd in process 1",
    "mechanism": "mechanism must be the same in every process of the run, got M2",
    "steps": "got 4 in process 0 and 5 in process 1",
    "sampling_rate": "got 0.5 in process 0 and 0.25 in process 1",
    "dataset_size": "got 14 in process 0 and 13 in process 1",
    "insecure_seed": "got 7 in process 0 and None in process 1",
    "module's 0.weight": "got (5, 6) torch.float64 trained in process 0 and (6, 6)",
    "trained": "torch.float64 trained in process 0 and (5, 6) torch.float64 frozen in process 1",
    "optimizer's groups": "optimizer's groups must be the same in every process of the run, got",
    "ledger": "which writes the file, got no ledger there",
    "damaged": "damaged.jsonl",
    "calibrated": "damaged.jsonl",
    "DataParallel": "wrapped for several devices, got a part in DataParallel",
    "nothing": "made",
    "a second start": "from an earlier call of make_private, got no ledger",
    "a second start with a ledger": "made",
}
"""What every process says where the processes differ in one thing."""


@pytest.mark.full
@pytest.mark.parametrize("name", DIFFERENCES)
def test_processes_that_differ_are_rejected_in_all_of_them(message, name):
    for rank in message[:2]:
        assert DIFFERENCES[name] in rank[name]
    if "in process 0" in DIFFERENCES[name]:
        assert message[0][name] == message[1][name]


@pytest.mark.full
def test_wrapped_module_is_trained_as_the_module_itself(message):
    """Uneven and empty shares, which would leave the sums of the wrapper waiting."""
    first, second, alone = message
    assert first["moves"] == second["moves"] == pytest.approx(alone["moves"], rel=1e-8, abs=1e-12)
    assert max(map(abs, alone["moves"])) > 0.1


@pytest.mark.full
def test_wrapper_whose_module_was_made_private_is_not_called(message):
    first, second, alone = message
    assert first["wrapper"] == second["wrapper"]
    assert "module must be the module that make_private returned, got DistributedDataParallel" in first["wrapper"]
    assert alone["wrapper"] == "torch.Size([14, 3])"
