"""Audit trained models by membership inference attacks.

Such an attack uses the loss of a model to detect whether a record was in the training data.

The attack ``poison`` trains shadow models with fresh randomness, half of them with a canary record. The canary has
random features and the least likely class. The score of a model is minus the loss of the canary, and lower bounds on
epsilon follow (arXiv 2601.21719, Appendix F.1).

The attack ``calibrated`` compares the losses of one model with the losses of a reference model, on training records and
on other records (arXiv 2409.17538v9). It averages over records and gives no bound on epsilon.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from privproj.contrib.audit.epsilon_lower import Array, auc, clopper_pearson_lower, clopper_pearson_upper
from privproj.errors import InvalidParameterError, unknown_name
from privproj.io.jobs import complete_rows, open_pool
from privproj.io.ledger import Account
from privproj.parameters import check_parameters, integer, number, parameter, whole_number
from privproj.training import Method, PoissonBatches, make_private
from privproj.training.algorithms import MEMBERSHIP_ALGORITHMS
from privproj.training.algorithms import load as load_algorithm
from privproj.training.classifier import load
from privproj.version import __version__

# noise multiplier of a model without noise, far below the single-precision rounding of a sum of gradients
SILENT = 1e-9

NO_CLAIM = 1e-6  # noise multiplier below which no epsilon is claimed

RATES = (0.1, 0.01)  # false positive rates of the reported true positive rates of the calibrated-loss attack


@dataclass(frozen=True, kw_only=True)
class Game:
    """The setup with which a membership inference audit trains its models.

    Attributes:
        mechanism: The name of the training algorithm.
        rank: The rank of the projections or LoRA adapters; None for an algorithm without a rank.
        noise_multiplier: The noise multiplier; 0 for a model without noise.
        records: The number of training records.
        steps: The number of steps.
        clip: The clipping norm.
        seed: The seed of all models; None for fresh randomness.

    Raises:
        InvalidParameterError: A field is out of range.
    """

    mechanism: str = "m2"
    rank: int | None = 16
    noise_multiplier: float = parameter(number("a noise multiplier from 0 to 1e+12", 0.0, 1e12), default=1.0)
    records: int = parameter(whole_number("an integer from 10 to 1e6", 10, 10**6), default=200)
    steps: int = parameter(whole_number("an integer from 1 to 1e6", 1, 10**6), default=30)
    clip: float = 4.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.mechanism not in MEMBERSHIP_ALGORITHMS:
            raise unknown_name("mechanism", self.mechanism, "algorithm", MEMBERSHIP_ALGORITHMS)
        needs = load_algorithm(self.mechanism).rank != "none"
        if needs != (self.rank is not None):
            raise InvalidParameterError("rank", self.rank, f"{'given' if needs else 'omitted'} for {self.mechanism}")

    def train_model(self, x: Tensor, y: Tensor, weights: Tensor, seed: int | None) -> tuple[nn.Module, Any]:
        """Return a linear classifier trained on weighted records, and its optimizer.

        Args:
            x: The features, of shape (records, width).
            y: The class of each record.
            weights: The weight of each record in the loss. A weight of 0 removes a record without changing the public
                number of records.
            seed: The seed of the training; None for fresh randomness.
        """
        torch.set_num_threads(1)
        module: nn.Module = nn.Linear(x.shape[1], int(y.max()) + 1)
        for weights_of_layer in module.parameters():
            nn.init.zeros_(weights_of_layer)
        algorithm = load_algorithm(self.mechanism)
        if algorithm.adapt is not None and self.rank is not None:
            module = algorithm.adapt(module, self.rank, insecure_seed=seed)
        trained = [p for p in module.parameters() if p.requires_grad]
        module, optimizer, loader = make_private(
            module=module, optimizer=torch.optim.SGD(trained, lr=1.0),
            data_loader=DataLoader(TensorDataset(x, y, weights)), max_grad_norm=self.clip,
            algorithm=Method(self.mechanism, self.rank if algorithm.projects else None),
            noise_multiplier=max(self.noise_multiplier, SILENT), steps=self.steps, batches=PoissonBatches(rate=1.0),
            insecure_seed=seed,
        )  # fmt: skip
        while len(loader):
            for batch in loader:
                optimizer.step_on(lambda r: r[2].squeeze() * cross_entropy(module(r[0]), r[1]), batch)
        return module, optimizer

    def claim(self, delta: float) -> float | None:
        """Return privproj's epsilon at ``delta`` for one model, rounded up.

        The result is None for a model without noise, or if there is no finite epsilon.
        """
        if self.noise_multiplier < NO_CLAIM:
            return None
        x, y = self.problem()[:2]
        short = replace(self, records=10, steps=1)
        optimizer = short.train_model(x[:10], y[:10], torch.ones(10), 0)[1]
        account = Account(((optimizer.plan.phase(self.steps).as_dict(), self.steps),))
        epsilon = account.epsilon(delta).value
        return None if epsilon is None else float(epsilon)

    def problem(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return features and classes of the training records, and of non-members."""
        digits = load("digits")
        if 2 * self.records > len(digits.x):
            raise InvalidParameterError(
                "records", self.records, f"at most half of the {len(digits.x)} training records"
            )
        n = self.records
        return digits.x[:n], digits.y[:n], digits.x[n:], digits.y[n:]


def _canary(game: Game) -> tuple[Tensor, Tensor]:
    """Return the features and the class of the canary record."""
    x, y, _, _ = game.problem()
    module, _ = replace(game, noise_multiplier=0.0).train_model(x, y, torch.ones(len(x)), 0)
    features = torch.randn(1, x.shape[1], generator=torch.Generator().manual_seed(game.seed or 0))
    with torch.no_grad():
        # Features from N(0, I), and the class that a model without noise considers least likely
        return features, module(features).argmin(1)


def _shadow_rows(game: Game, features: Tensor, label: Tensor, numbers: range) -> str:
    """Train shadow models, and return their scores as text, one line each.

    A score is minus the loss of the canary, in nats. Models with even ``numbers`` are trained with the canary.
    """
    rows = ""
    x, y, _, _ = game.problem()
    for i in numbers:
        index, outside = divmod(i, 2)
        weights = torch.ones(len(x) + 1)
        weights[-1] = 1.0 - outside
        seed = None if game.seed is None else 2 * (game.seed * 10**6 + index) + 1 - outside
        module, _ = game.train_model(torch.cat([x, features]), torch.cat([y, label]), weights, seed)
        with torch.no_grad():
            rows += f"{-float(cross_entropy(module(features), label))!r}\n"
    return rows


def poisoned(
    game: Game,
    models: int,
    workers: int = 2,
    journal: Path | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> tuple[Array, Array]:
    """Return the scores of shadow models with the canary, and of as many without it.

    A score is minus the loss of the canary, in nats.

    Args:
        game: The training of each model.
        models: The number of models with the canary, from 4 to 1e6.
        workers: The number of processes.
        journal: A file that stores the scores, so that an interrupted audit can be resumed; None for no file.
        progress: A function that is called with the number of models that were completed since its last call.

    Raises:
        InvalidParameterError: A value is out of range, or the journal belongs to another audit.
    """
    count = integer("models", models, "an integer >= 4", 4, 10**6)
    work, pool = partial(_shadow_rows, game, *_canary(game)), partial(open_pool, workers)
    head = json.dumps({"game": asdict(game), "models": count, "version": __version__}) + "\n"
    with (
        TemporaryDirectory() as home,
        complete_rows(work, 2 * count, journal or Path(home, "journal"), head, pool, progress) as rows,
    ):
        scores = [*map(float, rows)]
    return np.array(scores[0::2]), np.array(scores[1::2])


def calibrated_loss_attack(game: Game, confidence: float = 0.95) -> tuple[float, list[dict[str, float]], bool]:
    """Return the AUC and true positive rates of the calibrated-loss attack.

    The attack scores each record by the loss of a reference model minus the loss of the audited model.

    Returns:
        The AUC, the true positive rates at false positive rates of 10 % and 1 %, and whether the AUC is significantly
        above 1/2. A rate is a dictionary with the false positive rate ``at``, the true positive rate ``value``, and the
        ends ``low`` and ``high`` of its Clopper-Pearson interval.
    """
    x, y, other_x, other_y = game.problem()
    n = len(x)
    half = len(other_x) // 2
    aux_x, aux_y, out_x, out_y = other_x[:half], other_y[:half], other_x[half:], other_y[half:]
    module, _ = game.train_model(x, y, torch.ones(n), game.seed)
    basis, _ = replace(game, noise_multiplier=0.0).train_model(aux_x, aux_y, torch.ones(len(aux_x)), 0)

    def scores(features: Tensor, labels: Tensor) -> Array:
        with torch.no_grad():
            target, plain = (cross_entropy(m(features), labels, reduction="none") for m in (module, basis))
        # -(L(x; theta) - L(x; theta_ref)).
        return -(target - plain).numpy()

    inside, outside = scores(x, y), scores(out_x, out_y)
    error = 0.5 * (1.0 - confidence)
    rates = []
    for level in RATES:
        threshold = np.sort(outside)[::-1][max(math.ceil(level * len(outside)) - 1, 0)]
        hits = int((inside > threshold).sum())
        ends = {"low": clopper_pearson_lower(hits, n, error), "high": clopper_pearson_upper(hits, n, error)}
        rates.append({"at": level, "value": hits / n, **ends})
    area = auc(inside, outside)
    # The variance of an AUC is at most A (1 - A)/min(n, m).
    deviation = math.sqrt(area * (1.0 - area) / min(n, len(outside)))
    return area, rates, area - float(special.ndtri(confidence)) * deviation > 0.5
