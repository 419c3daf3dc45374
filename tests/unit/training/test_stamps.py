"""A second start on a trained module: it needs the ledger of the first one, and both are counted."""

import copy
import io
import warnings
from itertools import zip_longest

import pytest
from helpers import full_if, needs

torch = needs("torch")
needs("opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import DOUBLE, batch_of, data, mlp, orthonormal, own, private, state, take_in  # noqa: E402

import privproj  # noqa: E402
from privproj import Gaussian, InvalidParameterError  # noqa: E402
from privproj.assumptions import Requirement  # noqa: E402
from privproj.io.ledger import read_ledger, verify_ledger  # noqa: E402
from privproj.training import AdaptiveClipping, Subspace, Trajectory, add_frozen_lora, add_prism  # noqa: E402
from privproj.training.algorithms import ALGORITHMS  # noqa: E402
from privproj.training.dataset import STAMP  # noqa: E402

STEPS, RATE, DELTA = 4, 0.5, 1e-5
PLAN = {"algorithm": "dp-sgd", "noise_multiplier": 2.0, "steps": STEPS, "sampling_rate": RATE}


def start(module, **options):
    """A private run that is made ready and has released nothing."""
    return private(module, *data(records=40), **{**PLAN, **options})


def train(module, releases=STEPS, **options):
    """So many releases of a run on a module, which is closed then; its optimizer comes back."""
    module, optimizer, loader = start(module, **options)
    while optimizer.steps_done < releases:
        for batch in loader:
            optimizer.backward_on(own(module), batch)
            optimizer.step()
            if optimizer.steps_done >= releases:
                break
    optimizer.close()
    return optimizer


def rejected(module, **options):
    before = state(module)
    with pytest.raises(InvalidParameterError, match=r"from an earlier call of make_private, got .*ledger=PATH"):
        start(module, **options)
    assert torch.equal(state(module), before)


def head_only(module):
    module.requires_grad_(False)
    module[-1].requires_grad_(True)
    return module


def joint():
    return privproj.epsilon(Gaussian(noise_multiplier=2.0), delta=DELTA, steps=2 * STEPS, sampling_rate=RATE).value


# --- the case: first the head, then all -----------------------------------------------------------


def test_two_starts_on_one_module_have_one_epsilon_or_none(tmp_path):
    """Two answers for one data set would each be read as what it cost: 3.0 and 3.0 where 4.046 is true."""
    module, book = head_only(mlp()), str(tmp_path / "ledger.jsonl")
    plan = {"noise_multiplier": 1.19036541, "steps": 30, "sampling_rate": 0.1}
    first = train(module, releases=30, ledger=book, **plan)
    rejected(module.requires_grad_(True))
    second = train(module, releases=30, ledger=book, **plan)
    assert first.epsilon(DELTA).value == pytest.approx(3.0, rel=1e-4)
    assert second.epsilon(DELTA).value == read_ledger(book).epsilon(DELTA).value == pytest.approx(4.0458, rel=1e-4)
    assert verify_ledger((tmp_path / "ledger.jsonl").read_bytes(), book).holds


def test_restart_continues_a_partial_run(tmp_path):
    module, book = mlp(), str(tmp_path / "ledger.jsonl")
    for releases, phases in ((1, [1]), (STEPS, [STEPS]), (1, [STEPS, 1])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(module, releases, ledger=book)
        assert [steps for _, steps in read_ledger(book).phases] == phases
    # Another process knows weights only: it goes on with what was begun, and does not begin a whole plan anew.
    for releases in (2, STEPS):
        with pytest.warns(match=f"already holds {releases - 1 if releases == 2 else 2} of {STEPS}"):
            train(mlp(), releases, ledger=book)
        assert [steps for _, steps in read_ledger(book).phases] == [STEPS, releases]
    for again, other in ((None, mlp()), (False, module)):
        with pytest.warns(match="nothing is left"):
            start(other, ledger=book, again=again)[1].close()
    train(mlp(), 1, ledger=book, again=True)
    assert [steps for _, steps in read_ledger(book).phases] == [STEPS, STEPS, 1]


@pytest.mark.full
@pytest.mark.parametrize("order", [None, 40.0])
def test_last_digits_of_a_target_are_nothing_to_train_with(tmp_path, order):
    """They would fit a run with a noise of thousands."""
    module, book = mlp(), str(tmp_path / "ledger.jsonl")
    target = {"noise_multiplier": None, "epsilon": 1.0, "delta": DELTA, "adaptive_order": order, "ledger": book}
    train(module, **target)
    with pytest.raises(privproj.UnsupportedError, match="leave nothing"):
        start(module, **target)


@pytest.mark.full
def test_target_is_one_for_both_starts(tmp_path):
    module, book, target = mlp(), str(tmp_path / "ledger.jsonl"), {"noise_multiplier": None, "delta": DELTA}
    train(module, ledger=book, epsilon=1.0, **target)
    with pytest.raises(privproj.UnsupportedError, match="leave nothing"):
        start(module, ledger=book, epsilon=1.0001, **target)
    both = train(module, ledger=book, epsilon=2.0, **target)
    assert 1.99 < both.epsilon(DELTA).value <= 2.0


# --- what is one module ----------------------------------------------------------------------------


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def pickled(module):
    kept = io.BytesIO()
    torch.save(module, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=False)


def with_its_tensors(module):
    """Another module of other layers, in which one tensor is the old one."""
    other = mlp()
    other[0].weight = module[0].weight
    return other


SAME = {
    "itself": lambda module: module,
    "a copy": copy.deepcopy,
    "a pickle": pickled,
    "in a wrapper": Wrapped,
    "out of its container": lambda module: module[2],
    "a new head on the body": lambda module: nn.Sequential(module[0], module[1], nn.Linear(5, 3, dtype=DOUBLE)),
    "its body frozen": lambda module: head_only(nn.Sequential(module[0], module[1], nn.Linear(5, 3, dtype=DOUBLE))),
    "its tensors": with_its_tensors,
    "moved and back": lambda module: module.float().double(),
    "adapters around it": lambda module: add_frozen_lora(module, 2),
    "compiled": lambda module: torch.compile(module, backend="eager"),
}


@pytest.mark.parametrize("form", full_if(SAME, lambda form: form == "compiled"))
def test_module_that_has_released_is_known_in_every_form(form, tmp_path):
    book = str(tmp_path / "ledger.jsonl")
    module = mlp()
    train(module, releases=2, ledger=book)
    other = SAME[form](module)
    options = {"algorithm": "lora-fa"} if form == "adapters around it" else {}
    rejected(other, **options)
    rejected(other, **options, ledger=str(tmp_path / "other.jsonl"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start(other, **options, ledger=book)[1].close()


def test_merged_adapters_are_known_where_their_tensors_are_gone():
    module = add_frozen_lora(mlp(), 2)
    train(module, algorithm="lora-fa")
    for i in (0, 2):
        layer = module[i]
        layer.base.weight.data += layer.lora_B.weight.data @ layer.lora_A.weight.data
        module[i] = layer.base.requires_grad_(True)
    assert not any(STAMP in vars(p) for p in module.parameters())
    rejected(module)


def test_optimizer_over_tensors_that_have_released_is_known():
    old, new = mlp(), mlp()
    train(old)
    held = [*old.requires_grad_(False).parameters()]
    with pytest.raises(InvalidParameterError, match="that optimizer has from an earlier call of make_private"):
        start(new, optimizer=lambda trained: torch.optim.SGD([*trained, *held], lr=1.0))


def test_what_has_released_nothing_is_free():
    """A run that was never begun, what it has frozen, and other weights in another module are no second start."""
    module, body = mlp(), mlp()[:2].requires_grad_(False)
    for _ in range(2):
        start(module)[1].close()
        train(nn.Sequential(*body, nn.Linear(5, 3, dtype=DOUBLE)))
    train(module)
    fresh = mlp()
    fresh.load_state_dict(module.state_dict())
    start(fresh)[1].close()


def test_concurrent_runs_on_one_module_are_rejected():
    module = mlp()
    head, one, _ = start(module[2])
    x, y = data(records=40)
    _, two, _ = start(module)
    for run, seen, given in ((one, head, torch.tanh(module[0](x)).detach()), (two, module, x)):
        take_in(run, own(seen), batch_of(given, y))
        if run is one:
            run.step()
    with pytest.raises(InvalidParameterError, match="from an earlier call of make_private"):
        two.step()
    assert (one.steps_done, two.steps_done) == (1, 0)


# --- which ledger is the right one ------------------------------------------------------------------


def test_ledger_that_lacks_a_release_is_rejected(tmp_path):
    """Another one, one that begins now, one of a like run, and an older copy of its own."""
    book, like, early = (str(tmp_path / name) for name in ("ledger.jsonl", "like.jsonl", "early.jsonl"))
    module = mlp()
    train(mlp(), ledger=like)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(module, 2, ledger=book)
        for end in ("", ".data"):
            (tmp_path / f"early.jsonl{end}").write_bytes((tmp_path / f"ledger.jsonl{end}").read_bytes())
        train(module, 3, ledger=book)
    for wrong in (like, early, str(tmp_path / "new.jsonl")):
        rejected(module, ledger=wrong)
    assert not (tmp_path / "new.jsonl").exists() and read_ledger(early).spent == 2 and read_ledger(like).spent == STEPS
    (tmp_path / "moved").mkdir()
    for end in ("", ".data"):
        (tmp_path / f"ledger.jsonl{end}").rename(tmp_path / "moved" / f"book{end}")
    with pytest.warns(match=f"3 of {STEPS}"):
        start(module, ledger=str(tmp_path / "moved" / "book"))[1].close()


def test_releases_of_a_run_without_a_ledger_are_in_none(tmp_path):
    module = mlp()
    train(module)
    for book in (None, str(tmp_path / "ledger.jsonl")):
        with pytest.raises(InvalidParameterError, match=r"from an earlier call .*, got .*or build the module again"):
            start(module, ledger=book)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_subspace_training_is_accounted_with_its_search():
    def searched(module):
        module, search, loader = start(module)
        trajectory = Trajectory(search, 2)
        while search.steps_done < STEPS:
            for batch in loader:
                search.backward_on(own(module), batch)
                search.step()
        search.close()
        return trajectory.subspace()

    module = mlp()
    subspace = searched(module)
    rejected(module, algorithm="dp-sft", subspace=Subspace(orthonormal(53, 2), "public"))
    found = train(module, algorithm="dp-sft", subspace=subspace)
    assert found.epsilon(DELTA).value == pytest.approx(joint(), rel=1e-6)
    rejected(module, algorithm="dp-sft", subspace=subspace)


# --- all algorithms, and what is message ----------------------------------------------------------------

BUILD = {
    "lora-fa": lambda: add_frozen_lora(mlp(), 2),
    "lora-resampled": lambda: add_frozen_lora(mlp(), 2),
    "prism": lambda: add_prism(mlp(), 2),
}
MORE = {
    **{name: {"rank": 2} for name in ("m2", "m2-projected-clip", "projected-dp-sgd", "flora")},
    "dp-sft": {"subspace": Subspace(orthonormal(53, 2), "public")},
}


@pytest.mark.parametrize("adaptive", [None, pytest.param(AdaptiveClipping(sigma=4.0), marks=pytest.mark.full)])
@pytest.mark.parametrize("algorithm", full_if(ALGORITHMS, lambda name: name not in ("dp-sgd", "prism", "dp-sft")))
def test_every_algorithm_leaves_stamps(algorithm, adaptive, tmp_path):
    options = {"algorithm": algorithm, "adaptive_clipping": adaptive, **MORE.get(algorithm, {})}
    book = str(tmp_path / "ledger.jsonl")
    for ledger, message, other in (
        (None, Requirement.ONLY_THIS_RUN, Requirement.ONLY_THIS_LEDGER),
        (book, Requirement.ONLY_THIS_LEDGER, Requirement.ONLY_THIS_RUN),
    ):
        module = BUILD.get(algorithm, mlp)()
        found = train(module, **options, ledger=ledger).epsilon(DELTA)
        assert message in found.requirements and other not in found.requirements
        rejected(module, **options)
    train(module, **options, ledger=book)
    assert [steps for _, steps in read_ledger(book).phases] == [STEPS, STEPS]


def test_weights_are_saved_and_loaded_as_those_of_any_module():
    module, kept = mlp(), io.BytesIO()
    train(module)
    torch.save({"plain": module.state_dict(), "tensors": list(module.parameters())}, kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=True)
    for one, other in zip_longest(loaded["tensors"], module.parameters()):
        assert torch.equal(one, other)
    assert list(loaded["plain"]) == list(mlp().state_dict())
