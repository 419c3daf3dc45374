"""Four laws that every training algorithm keeps, and inserted faults that the same checks have to find.

* The silent step. With noise too small to see, a step changes the weights by the clipped sum over the expected batch,
  as the algorithm defines it, worked out here from the gradient of each record.
* Removal. Taking one record away changes what is released by at most the clip.
* Noise. What an empty batch releases is fresh Gaussian noise of the deviation that the plan says.
* Count. Where the clip adapts, the count of unclipped records is that of the definition, and has its noise.

A new algorithm is one entry in :data:`DEFINITIONS`. The tests say so until it is there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from helpers import full_if, needs
from scipy import stats

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, linear  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import batch_of, make_private, take_in  # noqa: E402

from privproj.training import AdaptiveClipping, Steps, Subspace  # noqa: E402
from privproj.training.algorithms import ALGORITHMS, load  # noqa: E402

DOUBLE = torch.float64
SILENT = 1e-12
"""A noise multiplier that cannot be seen next to the sums of a test."""
RECORDS, RETURNED, WIDTH, HIDDEN, CLASSES = 12, 9, 6, 5, 3
"""Fewer records come back than are expected, so that a mean over the batch's own size is another number."""
CLIP, RANK, SEED = 2.0, 2, 7
PLAIN = Steps(kind="plain", momentum=0.0)  # a step of PRISM that is linear in the release
RELATIVE = 1e-5
"""The release code overstates norms by 1e-6; every inserted fault is off by more than a hundredth."""


# --- the algorithms, defined once more ------------------------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """An algorithm as a paper would define it, for one layer with the gradients ``G`` (records x outputs x inputs).

    The last input is the constant 1 of the bias. ``draw`` picks up what the algorithm has drawn for this layer,
    ``summed`` is the image of ``G`` that is summed, ``measured`` the one whose norm is clipped (if another), and
    ``back`` what a sum of images does to the weights. ``joint``: all layers are one row of weights.
    """

    draw: Callable[[Any, Any], Any]
    summed: Callable[[Any, Any], Any]
    back: Callable[[Any, Any], Any]
    measured: Callable[[Any, Any], Any] | None = None
    options: Callable[[], dict] = dict
    joint: bool = False


def without_bias(g):
    return g[..., :-1]


def with_bias(change):
    """A bias that is not trained does not change."""
    return torch.cat([change, change.new_zeros(len(change), 1)], 1)


def best_of_rank(matrix, rank):
    u, s, vt = torch.linalg.svd(matrix)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def tangent(g, drawn):
    """``U U^T G + G V V^T - U U^T G V V^T``, the projection on the tangent space."""
    left, right = drawn["u"] @ drawn["u"].T, drawn["v"] @ drawn["v"].T
    g = without_bias(g)
    return left @ g + g @ right - left @ g @ right


def retraction(total, drawn):
    """The best approximation of its rank to ``Z - sum / (q N)``, as a change of ``Z`` times ``q N``."""
    new = best_of_rank(drawn["z"] - total / RECORDS, RANK)
    return with_bias(RECORDS * (drawn["z"] - new))


def prism_state(view, layer):
    u, s, v = (part.detach().clone() for part in (layer.u, layer.s, layer.v))
    return {"u": u, "v": v, "z": (u * s) @ v.T}


def random_basis():
    weights = (WIDTH + 1) * HIDDEN + (HIDDEN + 1) * CLASSES
    return torch.linalg.qr(torch.randn(weights, 4, generator=torch.Generator().manual_seed(3), dtype=DOUBLE))[0]


def lora(**options):
    """``G A^T`` is what the trained factor gets; a step of it moves the weights by its product with ``A``."""
    return Definition(
        draw=lambda view, layer: layer.lora_A.weight.detach().clone(),
        summed=lambda g, a: without_bias(g) @ a.T,
        back=lambda total, a: with_bias(total @ a),
        options=lambda: options,
    )


def projected(measured=None, scale=lambda q: q.shape[0] / q.shape[1]):
    """``G Q`` for a fresh ``Q`` with orthogonal columns; the estimate is ``(d/r) S Q^T`` where they have length 1."""
    return Definition(
        draw=lambda view, layer: view.q.clone(),
        summed=lambda g, q: g @ q,
        back=lambda total, q: total @ q.T * scale(q),
        measured=measured,
        options=lambda: {"rank": RANK},
    )


DEFINITIONS = {
    "dp-sgd": Definition(draw=lambda view, layer: None, summed=lambda g, _: g, back=lambda total, _: total),
    "lora-fa": lora(),
    "lora-resampled": lora(every=1),
    "flora": Definition(
        draw=lambda view, layer: view.a.clone(),
        summed=lambda g, a: g @ a.T,
        back=lambda total, a: 0.5 * total @ a,
        options=lambda: {"rank": RANK, "beta": 0.5},
    ),
    "m2": projected(measured=lambda g, q: g),
    "m2-projected-clip": projected(scale=lambda q: 1.0),  # columns of length sqrt(d/r)
    "projected-dp-sgd": Definition(
        draw=lambda view, layer: view.a.T @ view.a,
        summed=lambda g, square: g @ square,
        back=lambda total, square: total,
        options=lambda: {"rank": RANK},
    ),
    "prism": Definition(draw=prism_state, summed=tangent, back=retraction),
    "dp-sft": Definition(
        draw=lambda view, layer: torch.cat(view.parts),
        summed=lambda g, basis: g @ basis,
        back=lambda total, basis: basis @ total,
        options=lambda: {"subspace": Subspace(random_basis(), "public")},
        joint=True,
    ),
}

SHARES = (0.3, 0.7)
CASES = [
    (name, clipping)
    for name in ALGORITHMS
    for clipping in ("joint", "per-layer")
    if clipping == "joint" or not load(name).needs_subspace
]
each_case = pytest.mark.parametrize(("name", "clipping"), CASES, ids=lambda part: part)


def test_every_algorithm_is_defined_here():
    assert tuple(DEFINITIONS) == ALGORITHMS
    assert all(load(name).name == name and load(name).summary.endswith(".") for name in ALGORITHMS)


# --- one run, and the gradients of its records ----------------------------------------------------------


def data():
    """Records of different lengths, so that some are clipped and some are not."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, WIDTH, generator=draw, dtype=DOUBLE)
    x *= torch.logspace(-1.0, 1.0, RECORDS, dtype=DOUBLE)[torch.randperm(RECORDS, generator=draw)][:, None]
    return x, torch.randint(0, CLASSES, (RECORDS,), generator=draw)


def build(name):
    """A network of two layers, with the adapters that the algorithm trains; none of these is zero."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()
    adapt, options = load(name).adapt, {"steps": PLAIN} if name == "prism" else {}
    module = module if adapt is None else adapt(module, RANK, insecure_seed=4, **options)
    with torch.no_grad():
        for part in (p for key, p in module.named_parameters() if key.endswith((".s", "lora_B.weight"))):
            part.copy_(torch.linspace(0.7, 0.2, part.numel(), dtype=DOUBLE).view_as(part))
    return module


class PrivateRun:
    """A private run over the whole data in every step, its streams the same in every run, maybe with a fault."""

    def __init__(self, name, clipping, fault=None, **options):
        self.definition, self.module = DEFINITIONS[name], build(name)
        x, y = data()
        chosen = {"noise_multiplier": SILENT, "max_grad_norm": CLIP, "steps": 500, "sampling_rate": 1.0}
        shares = {"clipping": clipping, "shares": SHARES if clipping == "per-layer" else None}
        trained = [p for p in self.module.parameters() if p.requires_grad]
        _, self.optimizer, _ = make_private(
            module=self.module, optimizer=torch.optim.SGD(trained, lr=1.0), algorithm=name, insecure_seed=SEED,
            data_loader=DataLoader(TensorDataset(x, y)), **{**chosen, **shares, **self.definition.options(), **options},
        )  # fmt: skip
        self.noisy_sum, self.plan = self.optimizer._noisy_sum, self.optimizer.plan
        self.layers = [self.module[0], self.module[2]]
        if fault is not None:
            fault(self.noisy_sum)

    def take_in(self, rows):
        """Take some records in, as a batch of their own."""
        x, y = data()
        loss = lambda record: cross_entropy(self.module(record[0]), record[1])  # noqa: E731
        take_in(self.optimizer, loss, batch_of(x[rows], y[rows]))

    def released(self, rows=()):
        """The released sum of these records: each tensor in a row."""
        if len(rows):
            self.take_in(list(rows))
        self.noisy_sum.record = lambda: None
        return [mean.flatten() * self.plan.expected_batch for mean in self.noisy_sum.release()]

    def weights(self):
        """Weight and bias of both layers, with what the adapters add to them: outputs x (inputs + 1)."""
        found = []
        for layer in self.layers:
            base = getattr(layer, "base", layer)
            weight = base.weight.detach().clone()
            if hasattr(layer, "lora_B"):
                weight += layer.scale * layer.lora_B.weight.detach() @ layer.lora_A.weight.detach()
            if hasattr(layer, "u"):
                weight += ((layer.u * layer.s) @ layer.v.T).detach()
            found.append(torch.cat([weight, base.bias.detach()[:, None]], 1))
        return found

    def draws(self):
        """What was drawn for each layer, or for all of them."""
        views = self.optimizer._views
        layers = [self.layers] if self.definition.joint else self.layers
        return [self.definition.draw(view, layer) for view, layer in zip(views, layers, strict=True)]

    def grouped(self, parts):
        """Matrices of all layers as the algorithm sees them: one by one, or (joint) all in one row."""
        if not self.definition.joint:
            return parts
        rows = [row.flatten(-2) for part in parts for row in (part[..., :-1], part[..., -1:])]
        return [torch.cat(rows, -1)]


def gradients(weights, rows):
    """The gradient of every record's loss in both layers' weights: records x outputs x (inputs + 1), by autograd."""
    found = []
    for x, y in zip(*(part[rows] for part in data()), strict=True):
        leaves = [part.clone().requires_grad_() for part in weights]
        hidden = torch.tanh(linear(x, leaves[0][:, :-1], leaves[0][:, -1]))
        loss = cross_entropy(linear(hidden, leaves[1][:, :-1], leaves[1][:, -1]), y)
        found.append(torch.autograd.grad(loss, leaves))
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


def norms(parts):
    """Records x layers."""
    return torch.stack([part.flatten(1).norm(dim=1) for part in parts], 1)


class VacuousCheck(Exception):
    """The data of this test show nothing; no fault counts as found by it."""


# --- the checks -----------------------------------------------------------------------------------------


def check_silent_step(name, clipping, fault=None):
    """The change of the weights is that of the definition."""
    run, rows = PrivateRun(name, clipping, fault), list(range(RETURNED))
    definition, drawn, before = run.definition, run.draws(), run.weights()
    images, measured = (
        [image(g, d) for g, d in zip(run.grouped(gradients(before, rows)), drawn, strict=True)]
        for image in (definition.summed, definition.measured or definition.summed)
    )
    sizes = norms(measured)
    if clipping == "joint":
        sizes, limits = sizes.norm(dim=1, keepdim=True).expand(sizes.shape), [CLIP] * sizes.shape[1]
    else:
        limits = [CLIP * math.sqrt(share) for share in SHARES]
    factors = (torch.tensor(limits, dtype=DOUBLE) / sizes).clamp_max(1.0)
    if not ((factors < 0.9).any() and (factors == 1.0).any()):
        raise VacuousCheck("some records have to be clipped, and some not")
    totals = [torch.einsum("n,n...->...", c, image) for c, image in zip(factors.T, images, strict=True)]
    expected = [definition.back(total, d) for total, d in zip(totals, drawn, strict=True)]
    run.take_in(rows)
    run.optimizer.step()
    after = run.grouped(run.weights())
    for old, new, change in zip(run.grouped(before), after, expected, strict=True):
        error = (RECORDS * (old - new) - change).norm()
        assert error <= RELATIVE * change.norm(), f"off by {error / change.norm():.2g} of the step"


def check_removal(name, clipping, fault=None):
    """Without one record, the released sum is within the clip of what it was, and each layer within its share."""
    everyone = range(RECORDS)
    whole = PrivateRun(name, clipping, fault).released(everyone)
    limits = [CLIP * math.sqrt(share) for share in SHARES] if clipping == "per-layer" else [CLIP] * len(whole)
    largest = 0.0
    for gone in everyone[::2]:
        rest = PrivateRun(name, clipping, fault).released([j for j in everyone if j != gone])
        moves = [float((a - b).norm()) for a, b in zip(whole, rest, strict=True)]
        assert all(move <= limit * (1.0 + 1e-9) for move, limit in zip(moves, limits, strict=True))
        assert math.hypot(*moves) <= CLIP * (1.0 + 1e-9)
        largest = max(largest, math.hypot(*moves))
    if largest <= 0.1 * CLIP:
        raise VacuousCheck("some record has to matter")


def check_noise(name, clipping, fault=None):
    """Empty batches release independent Gaussian noise of deviation ``z`` times the sensitivity, in all coordinates."""
    for relation, sensitivity in (("add-remove", 3.0), ("replace", 6.0)):
        run = PrivateRun(name, clipping, fault, noise_multiplier=2.5, max_grad_norm=3.0, relation=relation)
        assert run.plan.noise_std == pytest.approx(2.5 * sensitivity, rel=1e-12, abs=0)
        draws = torch.stack([torch.cat(run.released()) for _ in range(100)]) / (2.5 * sensitivity)
        assert abs(float(draws.std()) - 1.0) < 5.0 / math.sqrt(2 * draws.numel())
        assert stats.kstest(draws.flatten().numpy(), "norm").pvalue > 1e-4
        assert abs(float((draws[1:] * draws[:-1]).mean())) < 5.0 / math.sqrt(draws.numel())


ADAPTIVE = AdaptiveClipping(target_quantile=0.4, learning_rate=0.5, sigma=SILENT)


def released_counts(run, *batches):
    """The noisy counts that were released with these batches, as the clip shows them: ``C <- C e^(-rate (b - p))``."""
    found, adaptive = [], run.plan.adaptive_clipping
    for rows in batches:
        before = run.optimizer.clip
        run.released(rows)
        share = adaptive.target_quantile - math.log(run.optimizer.clip / before) / adaptive.learning_rate
        found.append((share - 0.5) * run.plan.expected_batch)
    return found


def check_count(name, fault=None):
    """The count is the sum of ``b_j - 1/2`` of the definition, so one record moves it by 1/2."""
    run, everyone = PrivateRun(name, "joint"), list(range(RECORDS))
    image = run.definition.measured or run.definition.summed
    found = run.grouped(gradients(run.weights(), everyone))
    sizes = norms([image(g, d) for g, d in zip(found, run.draws(), strict=True)]).norm(dim=1)
    # Between two norms, so that some records are clipped and some are not.
    clip = float(sizes.sort().values[RECORDS // 3 : RECORDS // 3 + 2].mean())
    for rows in (everyone, *([j for j in everyone if j != gone] for gone in everyone[::3])):
        run = PrivateRun(name, "joint", fault, adaptive_clipping=ADAPTIVE, max_grad_norm=clip)
        (count,) = released_counts(run, rows)
        assert count == pytest.approx(float((sizes[rows] <= clip).sum()) - 0.5 * len(rows), abs=1e-6)


def check_noise_of_the_count(name, fault=None):
    """Empty batches release a count of noise alone, of the deviation that is accounted, whatever the relation."""
    for relation in ("add-remove", "replace"):
        adaptive = replace(ADAPTIVE, sigma=3.0, learning_rate=0.01)
        run = PrivateRun(name, "joint", fault, adaptive_clipping=adaptive, relation=relation)
        assert run.plan.mechanism.adaptive_clipping_sigma == 3.0
        counts = torch.tensor(released_counts(run, *[()] * 200)) / 3.0
        assert abs(float(counts.mean())) < 5.0 / math.sqrt(len(counts))
        assert abs(float(counts.std()) - 1.0) < 5.0 / math.sqrt(2 * len(counts))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_count_of_unclipped_records_matches_definition(name):
    check_count(name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_count_has_the_noise_that_is_accounted(name):
    check_noise_of_the_count(name)


@each_case
def test_silent_step_is_the_clipped_sum_of_the_definition(name, clipping):
    check_silent_step(name, clipping)


@each_case
def test_removing_a_record_changes_sum_by_at_most_clip(name, clipping):
    check_removal(name, clipping)


@each_case
def test_noise_is_that_of_the_plan(name, clipping):
    check_noise(name, clipping)


# --- inserted faults: negative controls --------------------------------------------------------------------


def no_clipping(noisy_sum):
    plain = noisy_sum.factors
    noisy_sum.factors = lambda squared, finite: torch.ones_like(plain(squared, finite))


def norms_understated(noisy_sum):
    plain = noisy_sum.factors
    noisy_sum.factors = lambda squared, finite: plain(0.0625 * squared, finite)


def the_whole_clip_for_every_tensor(noisy_sum):
    noisy_sum.clips = (noisy_sum.plan.clip,) * len(noisy_sum.views)


def clip_after_the_sum(noisy_sum):
    no_clipping(noisy_sum)
    plain = noisy_sum.release

    def release():
        sums = [part for part in noisy_sum.sums if part is not None]
        size = math.hypot(*(float(part.norm()) for part in sums)) if sums else 0.0
        factor = min(1.0, noisy_sum.plan.clip / size) if size else 1.0
        noisy_sum.sums = [None if part is None else factor * part for part in noisy_sum.sums]
        return plain()

    noisy_sum.release = release


def the_mean_of_the_batch(noisy_sum):
    plain_add, plain_release, counted = noisy_sum.add, noisy_sum.release, [0]

    def add(examples):
        counted[0] += examples
        plain_add(examples)

    def release():
        size, counted[0] = counted[0] or noisy_sum.plan.expected_batch, 0
        return [mean * noisy_sum.plan.expected_batch / size for mean in plain_release()]

    noisy_sum.add, noisy_sum.release = add, release


def half_the_noise(noisy_sum):
    plan = noisy_sum.plan
    noisy_sum.plan = replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=0.5 * plan.noise_multiplier))


def noise_on_the_first_tensor_only(noisy_sum):
    plain, loud = noisy_sum.noisy_means, noisy_sum.plan

    def noisy_means(sums):
        first = plain([None if total is None else total.clone() for total in sums])[:1]
        noisy_sum.plan = replace(loud, mechanism=replace(loud.mechanism, noise_multiplier=SILENT))
        rest = plain(sums)[1:]
        noisy_sum.plan = loud
        return first + rest

    noisy_sum.noisy_means = noisy_means


def the_same_noise_again(noisy_sum):
    noise = noisy_sum.streams.noise.on(torch.device("cpu"))
    plain, state = noisy_sum.release, noise.get_state()

    def release():
        noise.set_state(state)
        return plain()

    noisy_sum.release = release


def a_count_over_the_batch_itself(noisy_sum):
    plain_add, plain, counted = noisy_sum.add, noisy_sum.noisy_count, [0]

    def add(examples):
        counted[0] += examples
        plain_add(examples)

    noisy_sum.add = add
    noisy_sum.noisy_count = lambda *given: plain(*given) * noisy_sum.plan.expected_batch / max(counted[0], 1)


def a_count_of_the_records_beside_it(noisy_sum):
    """A record is counted by the average norm of its part of the batch."""
    plain = noisy_sum.factors
    noisy_sum.factors = lambda squared, finite: plain(squared.mean(0, keepdim=True).expand_as(squared), finite)


def a_count_without_noise(noisy_sum):
    noisy_sum.noisy_count = lambda count, adaptive: float(count)


FAULTS = {
    no_clipping: (check_silent_step, check_removal),
    norms_understated: (check_silent_step, check_removal),
    the_whole_clip_for_every_tensor: (check_silent_step,),
    clip_after_the_sum: (check_silent_step,),
    the_mean_of_the_batch: (check_silent_step,),
    half_the_noise: (check_noise,),
    noise_on_the_first_tensor_only: (check_noise,),
    the_same_noise_again: (check_noise,),
}
"""Every fault, and the checks that have to find it."""

FAULTS_OF_COUNTS = {
    norms_understated: check_count,
    a_count_over_the_batch_itself: check_count,
    a_count_of_the_records_beside_it: check_count,
    a_count_without_noise: check_noise_of_the_count,
}
"""Every fault of a count, and the check that has to find it."""

ONE_TENSOR = {the_whole_clip_for_every_tensor, noise_on_the_first_tensor_only}
"""Faults that are none where everything is one tensor."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", full_if(ALGORITHMS, lambda name: name not in ("dp-sgd", "m2")))
def test_injected_bugs_are_found(name, fault):
    if fault in ONE_TENSOR and DEFINITIONS[name].joint:
        return
    for check in FAULTS[fault]:
        with pytest.raises(AssertionError):
            check(name, "joint", fault)


@pytest.mark.parametrize("fault", FAULTS_OF_COUNTS, ids=lambda fault: fault.__name__)
def test_injected_bugs_of_a_count_are_found(fault):
    with pytest.raises(AssertionError):
        FAULTS_OF_COUNTS[fault]("m2", fault)
