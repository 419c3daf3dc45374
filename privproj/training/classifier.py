"""Train a linear head or a small network on features, for ``privproj train``.

A run has a folder with its settings, its ledger, its checkpoint and its report. A stopped run can be resumed, and its
earlier releases are counted.
"""

import json
import math
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import chain, repeat
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from privproj.accounting.schedule import dp_sft
from privproj.errors import InvalidParameterError
from privproj.io.files import parse_json, read_bounded, write_atomically
from privproj.io.ledger import Account, read_ledger
from privproj.training.adaptive_clipping import AdaptiveClipping
from privproj.training.algorithms import load as load_algorithm
from privproj.training.algorithms.prism import Steps
from privproj.training.algorithms.subspace import Subspace, Trajectory, flat_weights, leading
from privproj.training.batches import Batch
from privproj.training.generators import streams
from privproj.training.plan import Method, batches_of, rate_and_steps
from privproj.training.private import ResumedLedger, make_private
from privproj.training.processes import Processes, join_processes, own_device
from privproj.training.settings import Settings
from privproj.training.trained import trained_tensors

TEST_SHARE = 0.25  # fraction of the records used for testing if a dataset has no test part

DEFAULT_BATCH_SIZE = 256  # expected batch size if none is given; at most the number of records

DEFAULT_EPOCHS = 50  # passes over the data if neither epochs nor steps are given

LARGEST_CLASS = 10**6  # largest class number, so that a wrong label column does not cause a huge layer

# files in the folder of a run; a change of names makes earlier runs impossible to resume
FILES = {"settings": "settings.json", "ledger": "ledger.jsonl", "checkpoint": "checkpoint.pt", "report": "report.json"}


@dataclass(frozen=True)
class Data:
    """Features and class labels of a training set and a test set.

    ``x`` and ``test_x`` are records x width in float32. ``y`` and ``test_y`` have one class for each record, a number
    from 0.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def classes(self) -> int:
        """The number of classes: one more than the largest class in either set."""
        return int(torch.cat([self.y, self.test_y]).max()) + 1


def load(name: str) -> Data:
    """Load features and class labels of ``digits`` or of an ``.npz`` file.

    Features of a file are not scaled. The test set is ``test_x`` and ``test_y`` of the file, or else about a quarter of
    the records. The number of classes is assumed to be public.
    """
    # Features of a file are not scaled, because statistics of private records would be a release.
    arrays = _read_features(name)
    x, y = _checked_tensors(arrays["x"], arrays["y"])
    if "test_x" in arrays:
        test_x, test_y = _checked_tensors(arrays["test_x"], arrays["test_y"])
        if x.shape[1] != test_x.shape[1]:
            raise InvalidParameterError(
                "data", f"widths {x.shape[1]} and {test_x.shape[1]}", "a file with x as wide as test_x"
            )
        return Data(x, y, test_x, test_y)
    if name == "digits":
        # A public permutation selects the test set.
        train, test = np.split(np.random.default_rng(0).permutation(len(x)), [int((1.0 - TEST_SHARE) * len(x))])
    else:
        # A hash of each record decides, so adding one record changes the training set by at most this record.
        records = zip(x.numpy(), y.numpy(), strict=True)
        bytes_of = [sha256(features.tobytes() + label.tobytes()).digest()[0] for features, label in records]
        tested = np.array(bytes_of) < TEST_SHARE * 256
        train, test = np.flatnonzero(~tested), np.flatnonzero(tested)
    if not len(train) or not len(test):
        actual = f"{len(train)} of {len(x)} records for training"
        expected = "a file with records for training and for testing"
        raise InvalidParameterError("data", actual, expected, "give arrays test_x and test_y")
    return Data(x[train], y[train], x[test], y[test])


def _read_features(name: str, option: str = "data") -> dict[str, np.ndarray]:
    """Return the arrays of ``digits`` or of a file, by name.

    ``option`` is the command-line option, for error messages. Raises :class:`InvalidParameterError` if the file cannot
    be read or lacks arrays.
    """
    if name == "digits":
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

        pixels, classes = load_digits(return_X_y=True)
        return {"x": np.asarray(pixels) / 16.0, "y": np.asarray(classes)}
    try:
        with np.load(name, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        remedy = getattr(error, "strerror", None) or "write it with numpy.savez(FILE, x=..., y=...)"
        raise InvalidParameterError(option, name, "digits, or an .npz file of arrays", remedy) from None
    if not {"x", "y"} <= set(arrays) or ("test_x" in arrays) != ("test_y" in arrays):
        raise InvalidParameterError(
            option, ", ".join(arrays), "a file with arrays x and y, and either both or none of test_x and test_y"
        )
    return arrays


def _checked_tensors(x: np.ndarray, y: np.ndarray, option: str = "data") -> tuple[Tensor, Tensor]:
    """Return features (records x width) and classes (one for each record) as tensors.

    Raises :class:`InvalidParameterError` unless shapes match, features are finite, and classes are integers from 0 to
    1e6.
    """
    numbers = x.dtype.kind in "fiu" and y.dtype.kind in "iu"
    fit = numbers and x.ndim == 2 and x.size and y.shape == x.shape[:1]
    with np.errstate(over="ignore"):
        features = x.astype(np.float32) if numbers else x
    if not fit or not np.isfinite(features).all() or y.min() < 0 or y.max() > LARGEST_CLASS:
        shapes = f"{x.dtype} {x.shape} and {y.dtype} {y.shape}"
        expected = "finite numbers x (records x width) and integer classes y from 0 to 1e6 (records)"
        raise InvalidParameterError(option, shapes, expected)
    return torch.from_numpy(features), torch.from_numpy(y.astype(np.int64))


def _network(data: Data, settings: Settings, device: torch.device) -> nn.Module:
    """Return a linear head or a network with one hidden layer, with initial weights."""
    width, seed = data.x.shape[1], settings.insecure_seed or 0
    head = nn.Linear(settings.hidden or width, data.classes)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    module: nn.Module = head
    if settings.hidden is not None:
        below = nn.Linear(width, settings.hidden)
        generator = streams(seed).projection.on(torch.device("cpu"))
        nn.init.normal_(below.weight, 0.0, math.sqrt(2.0 / width), generator=generator)
        nn.init.zeros_(below.bias)
        module = nn.Sequential(below, nn.ReLU(), head)
    adapt = load_algorithm(settings.mechanism).adapt
    if adapt is not None:
        chosen = {"kind": settings.update, **{name: getattr(settings, name) for name in ("momentum", "beta2", "ridge")}}
        steps = Steps(**{name: value for name, value in chosen.items() if value is not None})
        options = {"steps": steps} if settings.mechanism == "prism" else {}
        module = adapt(module, settings.rank, insecure_seed=seed, **options)
    return module.to(device)


def _device_named(name: str | None) -> torch.device:
    """Return the torch device with this name; by default a GPU or else the CPU.

    Raises :class:`InvalidParameterError` if torch cannot use the device.
    """
    try:
        device = own_device(torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu")))
        float(torch.zeros(1, device=device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = "try cpu" if str(error).startswith("Expected one of") else str(error).split("\n")[0]
        raise InvalidParameterError("device", name or "cuda", "a device that torch can use", reason) from None
    return device


def join(settings: Settings) -> Processes:
    """Join the processes that ``torchrun`` started for a run, and return them."""
    return join_processes(_device_named(settings.device))


def _restore_checkpoint(folder: Path, module: nn.Module, device: torch.device) -> dict[str, Any]:
    """Load the checkpoint of a folder into the module, and return the checkpoint.

    The result is empty if there is no checkpoint. Raises :class:`InvalidParameterError` if the checkpoint is damaged,
    or does not fit the releases in the ledger.
    """
    path, ledger = folder / FILES["checkpoint"], folder / FILES["ledger"]
    released = read_ledger(ledger).spent if ledger.exists() else 0
    if not path.exists():
        if released or (folder / FILES["report"]).exists():
            remedy = "restore both, or start a run in another folder and compose both"
            raise InvalidParameterError(
                "resume", path, f"a folder with the checkpoint of the {released} releases in {ledger}", remedy
            )
        return {}
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        module.load_state_dict(state["module"])
        saved = int(state["released"])
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, EOFError, UnpicklingError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise InvalidParameterError(
            "resume", path, "a folder with a checkpoint of this run, for the same data", reason
        ) from None
    if released < saved:
        remedy = "restore the ledger from a backup, because each release must be counted"
        raise InvalidParameterError("ledger", ledger, f"a ledger with the {saved} releases of the checkpoint", remedy)
    return state


class ClassifierTraining:
    """A training run in a folder, new or resumed from its checkpoint and its ledger.

    The constructor raises an error if epsilon of the planned run cannot be computed. DP-SFT has two stages: a private
    search for a subspace, and then training in the subspace. Other algorithms have one stage.

    Attributes:
        state: The checkpoint.
        total: The number of private steps of all stages.
        folder: The folder of the run; None except in process 0.
        ledger: The path of the ledger; None except in process 0.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.data, self.processes = settings, load(settings.data), join(settings)
        self.device, self.trajectory = _device_named(settings.device), None
        options = {"count": settings.batches, "max_batch_size": settings.max_batch_size}
        chosen = {name: value for name, value in options.items() if value is not None}
        self.drawing = replace(batches_of(settings.sampling), **chosen)
        records, steps = len(self.data.x), settings.steps
        self.batch_size = settings.batch_size or min(DEFAULT_BATCH_SIZE, records)
        epochs = DEFAULT_EPOCHS if settings.epochs is None and steps is None else settings.epochs
        self.rate, self.total, _ = rate_and_steps(self.drawing, records, self.batch_size, steps, epochs)
        self.module = _network(self.data, settings, self.device)
        self.state = _restore_checkpoint(folder, self.module, self.device)
        self.folder = folder if self.processes.first else None
        self.ledger = str(folder / FILES["ledger"]) if self.processes.first else None
        is_new = not self.state
        self.start_next_stage()
        try:
            self.optimizer._spending.account.planned.epsilon(settings.delta)
            if is_new:
                self.save()
        except BaseException:
            self.optimizer.close()
            raise

    def start_next_stage(self) -> None:
        """Start the first training stage that is not finished according to the ledger.

        A resumed stage keeps the noise multiplier with which it began.
        """
        settings, rank = self.settings, self.settings.rank or 0
        search = settings.subspace_steps or self.total // 2
        noise = {name: getattr(settings, name) for name in ("noise_multiplier", "epsilon", "delta")}
        if not load_algorithm(settings.mechanism).needs_subspace:
            return self.start_stage(settings.mechanism, self.total, noise, settings.rank)
        if not rank:
            raise InvalidParameterError("rank", None, f"given for {settings.mechanism}", "give a rank")
        if settings.public_data is not None:
            if "rows" not in self.state:
                public = self.public_records(settings.public_data)
                self.state["rows"] = public_search(self.module, public, settings, search, rank)
            subspace = Subspace(leading(torch.stack(self.state["rows"]), rank), "public")
            return self.start_stage(settings.mechanism, self.total, noise, subspace=subspace)
        if not 0 < search < self.total:
            least = f"at least {search + 1}" if search else "at least 2, one for the search"
            raise InvalidParameterError("steps", self.total, least)
        phases: Any = read_ledger(self.ledger).phases if self.ledger and Path(self.ledger).exists() else ()
        done = self.processes.agree(phases)
        if len(done) < 2 and sum(steps for _, steps in done) < search:
            # The search: steps of DP-SGD, whose trajectory is stored.
            if not done and settings.epsilon is not None:
                epsilon, delta, steps = settings.epsilon, settings.delta, (search, self.total - search)
                both = dp_sft(epsilon=epsilon, delta=delta, sampling_rate=self.rate, steps=steps)
                noise = {"noise_multiplier": both.phases[0].mechanism.noise_multiplier}
            self.start_stage("dp-sgd", search, {"noise_multiplier": done[0][0]["noise_multiplier"]} if done else noise)
            self.trajectory = Trajectory(self.optimizer, rank)
            if "rows" in self.state:
                self.trajectory.start, self.trajectory.rows = self.state["start"], list(self.state["rows"])
            return None
        self.trajectory = None
        if not self.state.get("rows"):
            raise InvalidParameterError(
                "resume", self.folder, "a run with snapshots of its search", "start another run"
            )
        subspace = Subspace(leading(torch.stack(self.state["rows"]), rank), "dp", Account(done[:1]))
        return self.start_stage(settings.mechanism, self.total - search, noise, subspace=subspace)

    def public_records(self, name: str) -> DataLoader:
        """Return a loader of the public records in a file.

        Raises :class:`InvalidParameterError` if they have another number of features than the private records, or more
        classes.
        """
        arrays, width, classes = _read_features(name, "public_data"), self.data.x.shape[1], self.data.classes
        x, y = _checked_tensors(arrays["x"], arrays["y"], "public_data")
        if x.shape[1] != width or int(y.max()) >= classes:
            actual = f"{name} with {x.shape[1]} features and {int(y.max()) + 1} classes"
            expected = f"a file with {width} features and at most {classes} classes, as in --data"
            raise InvalidParameterError("public_data", actual, expected)
        records = TensorDataset(x.to(self.device), y.to(self.device))
        order = streams(self.settings.insecure_seed).projection.on(torch.device("cpu"))
        return DataLoader(records, batch_size=self.batch_size, shuffle=True, generator=order)

    def start_stage(
        self, algorithm: str, steps: int, noise: Any, rank: int | None = None, subspace: Subspace | None = None
    ) -> None:
        """Create the private optimizer and the private loader of one stage."""
        settings, sigma = self.settings, self.settings.adaptive_clipping_sigma
        trained = [p for p in self.module.parameters() if p.requires_grad]
        kind, rate = torch.optim.SGD, settings.learning_rate or 0.0
        if subspace is not None:
            kind, usual = (torch.optim.Adam, 0.02) if settings.optimizer == "adam" else (kind, rate)
            rate = settings.subspace_learning_rate or usual
        with warnings.catch_warnings():  # the weights are in the checkpoint, so the warning does not apply
            warnings.simplefilter("ignore", ResumedLedger)
            self.module, self.optimizer, self.loader = make_private(
                module=self.module, optimizer=kind(trained, lr=rate), steps=steps,
                data_loader=DataLoader(TensorDataset(self.data.x, self.data.y), batch_size=self.batch_size),
                algorithm=Method(algorithm, rank, settings.frame, subspace, settings.every, bound=settings.bound),  # pyright: ignore
                clipping=settings.clipping if sigma is None else AdaptiveClipping(sigma=sigma),  # pyright: ignore
                batches=self.drawing, max_grad_norm=settings.clip,
                ledger=self.ledger, insecure_seed=settings.insecure_seed, **noise,
            )  # fmt: skip
        if "clip" in self.state:
            self.optimizer._noisy_sum.resume_clip(self.state["clip"])
        if "optimizer" in self.state:
            self.optimizer.load_state_dict(self.state["optimizer"])

    def save(self) -> None:
        """Write the checkpoint atomically; only process 0 writes it."""
        released = self.optimizer._spending.account.spent
        self.state |= {"module": self.module.state_dict(), "released": released}
        if self.settings.adaptive_clipping_sigma is not None:
            self.state["clip"] = self.optimizer.clip
        if self.trajectory is not None:
            self.state |= {"start": self.trajectory.start, "rows": self.trajectory.rows}
        elif self.settings.optimizer == "adam":
            self.state["optimizer"] = self.optimizer.state_dict()
        if self.folder is not None:
            write_atomically(self.folder / FILES["checkpoint"], lambda file: torch.save(self.state, file))

    def train(self, progress: Callable[[int], object] = lambda steps: None) -> dict[str, Any]:
        """Make all training steps that are left, and return the report of the run.

        ``progress`` is called with the number of steps since its last call. The ledger is closed, also after an error.
        """
        began = time.monotonic()
        try:
            progress(self.optimizer._spending.account.spent)
            self.finish_stage(progress)
            if self.trajectory is not None:
                self.optimizer.close()
                self.start_next_stage()
                self.finish_stage(progress)
            return self.report(began)
        finally:
            self.optimizer.close()

    def finish_stage(self, progress: Callable[[int], object]) -> None:
        """Make all steps that are left in the current stage, and write a checkpoint."""
        while len(self.loader):
            for batch in self.loader:
                self.step(batch)
                progress(1)
        self.save()

    def step(self, batch: Batch) -> None:
        """Make one step on a batch, and write a checkpoint if it is due."""
        self.optimizer.step_on(lambda record: cross_entropy(self.module(record[0]), record[1]), batch)
        if self.optimizer.steps_done % self.settings.checkpoint_every == 0:
            self.save()

    def report(self, began: float) -> dict[str, Any]:
        """Return the report of a finished run: accuracy, noise, files, epsilon and releases.

        ``began`` is the time of the start by ``time.monotonic``, in seconds.
        """
        plan, account = self.optimizer.plan, self.optimizer._spending.account
        sigma = self.settings.adaptive_clipping_sigma
        clips = {"first_clip": plan.clip, "last_clip": self.optimizer.clip, "sigma": sigma}
        return {
            "test_accuracy": self.accuracy(),
            "noise_multiplier": plan.noise_multiplier,
            "noise_std": plan.noise_std,
            **({} if sigma is None else {"adaptive_clipping": clips}),
            "steps": account.spent,
            "device": str(self.device),
            "seconds": time.monotonic() - began,
            "paths": {} if self.folder is None else {name: str(self.folder / file) for name, file in FILES.items()},
            "result": self.optimizer.epsilon(self.settings.delta),
            "account": account,
        }

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the fraction of test records that are classified correctly."""
        scores = self.module(self.data.test_x.to(self.device))
        return float((scores.argmax(1).cpu() == self.data.test_y).float().mean())


def public_search(module: nn.Module, batches: DataLoader, settings: Settings, steps: int, rank: int) -> list[Tensor]:
    """Train a module on public batches without noise, and return weight snapshots.

    After every ``floor(steps/rank)`` steps, a snapshot has the changes of all trained weights since the first step.
    """
    if rank > steps:
        raise InvalidParameterError("rank", rank, f"at most {steps}, the number of steps of the search")
    trained, rows, every = trained_tensors(module), [], steps // rank
    start, parameters = flat_weights(trained), [p for one in trained for p in one.parameters]
    optimizer = torch.optim.SGD(parameters, lr=settings.learning_rate or 0.0)
    for step, (x, y) in zip(range(1, steps + 1), chain.from_iterable(repeat(batches)), strict=False):
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        # The mean gradient of the batch is clipped, and not each record's gradient.
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
        optimizer.step()
        if step % every == 0:
            rows.append(flat_weights(trained) - start)
    optimizer.zero_grad()
    return rows


def begin_run(settings: Settings, folder: Path) -> None:
    """Create the folder of a run and write its settings.

    Raises :class:`InvalidParameterError` if the folder already has a run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidParameterError("output", folder, "a writable folder", str(error.strerror)) from None
    if any((folder / file).exists() for file in FILES.values()):
        raise InvalidParameterError(
            "output", folder, "a folder without a run", "resume the run with --resume, or use another folder"
        )
    saved = {**asdict(settings), "sha256": _fingerprint(asdict(settings))}
    write_atomically(folder / FILES["settings"], lambda file: file.write(json.dumps(saved, indent=2).encode()))


def _fingerprint(settings: dict[str, Any]) -> str:
    """Return a hash of the settings, to detect changes before a resume."""
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def remove_unused_folder(folder: Path) -> None:
    """Remove the files of a run that made no releases, and its folder if then empty."""
    ledger = folder / FILES["ledger"]
    if not ledger.exists() or not read_ledger(ledger).spent:
        for file in (*FILES.values(), f"{FILES['ledger']}.data"):
            (folder / file).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def saved_settings(folder: Path) -> Settings:
    """Return the settings that a run has saved in its folder.

    Raises :class:`InvalidParameterError` if the settings are missing or were changed.
    """
    try:
        saved = parse_json(read_bounded(folder / FILES["settings"]).decode())
        claimed = saved.pop("sha256", None)
        settings = Settings(**saved)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise InvalidParameterError("resume", folder, "a folder that privproj train wrote") from None
    if claimed != _fingerprint(saved):
        remedy = "parameters must not depend on earlier outputs, so start another run in another folder"
        raise InvalidParameterError("resume", folder / FILES["settings"], "a folder with unchanged settings", remedy)
    return settings
