"""Other packages: real dp-accounting, real Opacus where it is installed, PEFT's files."""

import json
import math
import random
import subprocess
import sys
from collections import Counter
from importlib import metadata
from types import SimpleNamespace

import dp_accounting
import pytest
from privproj_cli.main import exit_code

import privproj
from privproj import M2, Gaussian, InvalidParameter, Laplace, Layer, PrivprojError, Refused
from privproj.integrations import peft as peft_rules
from privproj.integrations.dp_accounting import ProjectionPLDAccountant, ProjectionRdpAccountant, ReleaseDpEvent
from privproj.integrations.opacus import ProjectionAccountant, ReleasesProjection, loader_rate
from privproj.integrations.peft import layers_from_peft
from privproj.records.run_file import from_data

RELEASE = M2(dim=2048, rank=16, noise_multiplier=0.2)


def sampled(event, rate, count):
    return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(rate, event), count)


def test_mixed_composition_equals_ours_to_the_grid_error():
    events = [
        sampled(ReleaseDpEvent(RELEASE), 0.01, 300),
        sampled(dp_accounting.GaussianDpEvent(2.0), 0.01, 200),
        dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(20.0), 3),
    ]
    accountant = ProjectionPLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.ComposedDpEvent(events))
    ours = from_data(
        {
            "phase": [
                {
                    "mechanism": "m2",
                    "dim": 2048,
                    "rank": 16,
                    "noise_multiplier": 0.2,
                    "sampling_rate": 0.01,
                    "steps": 300,
                },
                {"mechanism": "gaussian", "noise_multiplier": 2, "sampling_rate": 0.01, "steps": 200},
                {"mechanism": "laplace", "noise_multiplier": 20, "steps": 3},
            ]
        }
    ).epsilon(delta=1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(ours.value, rel=2e-3, abs=0)


def test_renyi_accountant_equals_our_renyi_bound():
    accountant = ProjectionRdpAccountant()
    accountant.compose(sampled(ReleaseDpEvent(RELEASE), 0.01, 500))
    ours = privproj.epsilon(RELEASE, delta=1e-5, steps=500, sampling_rate=0.01, bound="mixture-rdp").value
    assert accountant.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-6, abs=0)
    with pytest.raises(dp_accounting.UnsupportedEventError):
        accountant.compose(ReleaseDpEvent(Laplace(noise_multiplier=3.0)))


def test_calibration_by_events_equals_sigma():
    found = dp_accounting.calibrate_dp_mechanism(
        lambda: ProjectionPLDAccountant(value_discretization_interval=1e-3),
        lambda z: sampled(ReleaseDpEvent(M2(dim=2048, rank=16, noise_multiplier=z)), 0.01, 300),
        1.0, 1e-5, bracket_interval=dp_accounting.ExplicitBracketInterval(0.05, 1.0), tol=1e-5,
    )  # fmt: skip
    ours = privproj.sigma(M2(dim=2048, rank=16), epsilon=1.0, delta=1e-5, steps=300, sampling_rate=0.01).value
    assert found == pytest.approx(ours, rel=3e-3, abs=0)


def test_what_cannot_be_sampled_is_refused():
    replace = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = ProjectionPLDAccountant(replace)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="amplification"):
        accountant.compose(sampled(ReleaseDpEvent(RELEASE), 0.01, 3))
    accountant.compose(ReleaseDpEvent(Gaussian(noise_multiplier=1.0), relation="replace"))
    known = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, relation="replace").value
    assert accountant.get_epsilon(1e-5) == pytest.approx(known, rel=1e-3, abs=0)


RELATIONS = dp_accounting.NeighboringRelation


@pytest.mark.filterwarnings("ignore:relation replace")
@pytest.mark.parametrize("relation", RELATIONS)
def test_noise_is_over_the_sensitivity_here_and_over_the_clip_there(relation):
    z, factor = 2.0, 2.0 if relation is RELATIONS.REPLACE_ONE else 1.0
    stock = dp_accounting.pld.PLDAccountant(relation, 1e-3).compose(dp_accounting.GaussianDpEvent(factor * z), 3)
    ours = ProjectionPLDAccountant(relation, 1e-3).compose(ReleaseDpEvent(Gaussian(noise_multiplier=z)), 3)
    assert ours.get_epsilon(1e-5) == pytest.approx(stock.get_epsilon(1e-5), rel=1e-5, abs=0)
    named = {RELATIONS.REPLACE_ONE: "replace", RELATIONS.ADD_OR_REMOVE_ONE: "add-remove"}.get(relation, "zero-out")
    exact = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-5, steps=3, relation=named).value
    assert exact <= ours.get_epsilon(1e-5) * (1 + 1e-9) and exact == pytest.approx(
        ours.get_epsilon(1e-5), rel=1e-4, abs=0
    )
    renyi = ProjectionRdpAccountant(neighboring_relation=relation).compose(
        ReleaseDpEvent(Gaussian(noise_multiplier=z)), 3
    )
    assert renyi.get_epsilon(1e-5) >= exact


def test_an_event_keeps_its_relation():
    for relation in RELATIONS:
        names = ["replace", "add-remove", "zero-out"]
        accepted = []
        for name in names:
            event = ReleaseDpEvent(Gaussian(noise_multiplier=2.0), relation=name)
            for accountant in (
                ProjectionPLDAccountant(relation),
                ProjectionRdpAccountant(neighboring_relation=relation),
            ):
                nested = dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([event]), 2)
                if accountant.supports(nested):
                    accepted.append(name)
                else:
                    with pytest.raises(dp_accounting.UnsupportedEventError, match="neighbouring relation"):
                        accountant.compose(nested)
        assert len(accepted) == 2 and len(set(accepted)) == 1
    with pytest.raises(InvalidParameter, match="relation"):
        ReleaseDpEvent(Gaussian(noise_multiplier=2.0), relation="remove")
    with pytest.warns(UserWarning, match="2C"):
        ProjectionPLDAccountant(RELATIONS.REPLACE_ONE).compose(ReleaseDpEvent(Gaussian(noise_multiplier=2.0)))


def test_two_conventions_of_noise_are_not_composed_under_replace():
    ours = ReleaseDpEvent(Gaussian(noise_multiplier=2.0), relation="replace")
    theirs = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 2)
    for parts in ([ours, theirs], [theirs, ours]):
        accountant = ProjectionPLDAccountant(RELATIONS.REPLACE_ONE)
        assert not accountant.supports(dp_accounting.ComposedDpEvent(parts))
        with pytest.raises(dp_accounting.UnsupportedEventError, match="twice the clip"):
            accountant.compose(dp_accounting.ComposedDpEvent(parts))
        accountant.compose(parts[0])
        before = accountant.get_epsilon(1e-5)
        with pytest.raises(dp_accounting.UnsupportedEventError, match="twice the clip"):
            accountant.compose(parts[1])
        assert accountant.get_epsilon(1e-5) == before
    with pytest.raises(dp_accounting.UnsupportedEventError, match="sensitivity at the clip"):
        ProjectionRdpAccountant(neighboring_relation=RELATIONS.REPLACE_ONE).compose(theirs)
    free = ReleaseDpEvent(Gaussian(noise_multiplier=2.0))
    ProjectionPLDAccountant().compose(dp_accounting.ComposedDpEvent([free, theirs]))


# --- Opacus ---------------------------------------------------------------------------------------


class Stock:
    """What a stock optimizer shows to a hook, and a name that claims more."""

    noise_multiplier = 1.0
    release = RELEASE


class Projecting(ReleasesProjection):
    noise_multiplier = 1.0
    release = M2(dim=2048, rank=16)


def test_only_an_optimizer_that_projects_gives_the_numbers_of_m2():
    plain, projected = ProjectionAccountant(), ProjectionAccountant()
    for accountant, optimizer in ((plain, Stock()), (projected, Projecting())):
        hook = accountant.get_optimizer_hook_fn(0.01)
        for _ in range(50):
            hook(optimizer)
        assert len(accountant) == 50
    run = {"delta": 1e-5, "steps": 50, "sampling_rate": 0.01}
    assert plain.get_epsilon(1e-5) == privproj.epsilon(Gaussian(noise_multiplier=1.0), **run).value
    assert projected.get_epsilon(1e-5) == privproj.epsilon(M2(dim=2048, rank=16, noise_multiplier=1.0), **run).value
    mixed = ProjectionAccountant()
    mixed.load_state_dict(json.loads(json.dumps(projected.state_dict())))
    assert mixed.get_epsilon(1e-5) == projected.get_epsilon(1e-5)
    mixed.step(noise_multiplier=1.0, sample_rate=0.01)
    assert mixed.get_epsilon(1e-5) > projected.get_epsilon(1e-5) and len(mixed) == 51
    with pytest.raises(InvalidParameter, match="mechanism"):
        mixed.load_state_dict({"mechanism": "rdp", "history": []})
    with pytest.raises(InvalidParameter, match="sample_rate"):
        mixed.step(noise_multiplier=1.0, sample_rate=1.5)
    assert ProjectionAccountant().get_epsilon(1e-5) == 0.0


def test_the_accountant_needs_neither_torch_nor_opacus():
    code = "import sys, privproj.integrations.opacus as m; assert not {'torch', 'opacus'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def opacus_parts(records=64, batch=8, loader=None):
    torch, opacus = pytest.importorskip("torch"), pytest.importorskip("opacus")
    from privproj.integrations.opacus import register

    register()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    data = torch.utils.data.TensorDataset(torch.randn(records, 8), torch.randint(0, 2, (records,)))
    engine = opacus.PrivacyEngine(accountant="privproj")
    parts = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": loader(data) if loader else torch.utils.data.DataLoader(data, batch_size=batch),
        "max_grad_norm": 1.0,
    }
    return engine, parts


def train(model, optimizer, loader):
    torch = pytest.importorskip("torch")
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore")
def test_a_stock_opacus_optimizer_never_yields_an_m2_number():
    engine, parts = opacus_parts()
    train(*engine.make_private(**parts, noise_multiplier=1.0))
    accountant = engine.accountant
    assert {mechanism.name for mechanism, _, _ in accountant.history} == {"gaussian"}
    known = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-3, steps=len(accountant), sampling_rate=0.125)
    assert engine.get_epsilon(1e-3) == known.value


ADAPTIVE = {
    "clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 10.0,
    "min_clipbound": 0.1, "unclipped_num_std": 2.0,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"poisson_sampling": False}, "poisson_sampling=True"),
        ({"rand_on_empty": True}, "rand_on_empty=False"),
        (ADAPTIVE, "clipping='flat'"),
    ],
)
def test_what_opacus_accounts_wrongly_is_refused_before_a_step(options, words):
    engine, parts = opacus_parts()
    with pytest.raises(Refused, match=words):
        engine.make_private(**parts, noise_multiplier=1.0, **options)
    assert len(engine.accountant) == 0


@pytest.mark.filterwarnings("ignore")
def test_opacus_steps_that_are_no_poisson_samples_are_refused():
    from opacus.optimizers import AdaClipDPOptimizer

    engine, parts = opacus_parts()
    model, optimizer, loader = engine.make_private(**parts, noise_multiplier=1.0)
    hook = ProjectionAccountant().get_optimizer_hook_fn(0.125)
    for batch in list(loader)[:2]:
        model.allow_grad_accumulation()
        model(batch[0]).sum().backward()
    with pytest.raises(Refused, match="2 accumulated batches"):
        optimizer.step()
    options = {key: value for key, value in ADAPTIVE.items() if key != "clipping"}
    bare = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 8}
    with pytest.raises(Refused, match="AdaClip"):
        hook(AdaClipDPOptimizer(parts["optimizer"], **bare, **options))


@pytest.mark.filterwarnings("ignore")
def test_opacus_distributed_loader_is_refused():
    torch, opacus = pytest.importorskip("torch"), pytest.importorskip("opacus")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        engine, parts = opacus_parts()
        parts["module"] = pytest.importorskip("opacus.distributed").DifferentiallyPrivateDistributedDataParallel(
            parts["module"]
        )
        loader = opacus.data_loader.DPDataLoader.from_data_loader(parts["data_loader"], distributed=True)
        with pytest.raises(Refused, match="distributed loader"):
            loader_rate(loader)
        with pytest.raises(Refused, match="DistributedDPOptimizer"):
            engine.make_private(**parts, noise_multiplier=1.0)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_the_rate_is_that_of_the_sampler_of_opacus():
    torch = pytest.importorskip("torch")
    for length, batch in ((64, 9), (70, 7), (1000, 7)):
        engine, parts = opacus_parts(length, batch)
        train(*engine.make_private(**parts, noise_multiplier=1.0)[:2], [(torch.randn(3, 8), torch.tensor([0, 1, 0]))])
        ((_, rate, _),) = engine.accountant.history
        below = torch.arange(2**24, dtype=torch.float32) * 2.0**-24 < 1 / math.ceil(length / batch)
        assert rate == int(below.sum()) / 2**24 >= 1 / math.ceil(length / batch) - 1e-12


@pytest.mark.filterwarnings("ignore")
def test_opacus_calibrates_by_this_accountant():
    engine, parts = opacus_parts()
    _, optimizer, _ = engine.make_private_with_epsilon(**parts, target_epsilon=2.0, target_delta=1e-3, epochs=2)
    run = {"delta": 1e-3, "steps": 16, "sampling_rate": 0.125}
    found = privproj.epsilon(Gaussian(noise_multiplier=optimizer.noise_multiplier), **run).value
    assert 1.98 < found <= 2.0


def test_a_state_that_was_not_written_here_is_refused():
    accountant = ProjectionAccountant()
    accountant.record(M2(layers=(Layer(dim=64, rank=4, count=2),), noise_multiplier=1.0), 0.01, 7)
    accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    state = json.loads(json.dumps(accountant.state_dict()))
    again = ProjectionAccountant()
    again.load_state_dict(state)
    assert again.history == accountant.history
    wrong = [
        ("relation", "replace"), ("relation", "zero-out"), ("group_size", 3), ("sampling", "fixed"), ("planned", True),
        ("bound", "gaussian"), ("epochs", 3), ("steps", 0), ("sampling_rate", 2.0), ("mechanism", "wishart"),
        ("noise_multiplier", "1"), ("fixed_projection", True),
    ]  # fmt: skip
    for key, value in wrong:
        phases = [state["phases"][0] | {key: value}, state["phases"][1]]
        with pytest.raises(PrivprojError):
            again.load_state_dict({**state, "phases": phases})
            again.get_epsilon(1e-5)
    for phases in (None, {}, "phases", [3]):
        with pytest.raises(InvalidParameter):
            again.load_state_dict({**state, "phases": phases})
    with pytest.raises(InvalidParameter, match="phases"):
        again.load_state_dict({"mechanism": "privproj"})


def test_no_option_is_dropped():
    accountant = ProjectionAccountant()
    accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    known = accountant.get_epsilon(1e-5)
    assert accountant.get_epsilon(1e-5, poisson=True, alphas=None, eps_error=0.1) == known
    with pytest.raises(Refused, match="poisson"):
        accountant.get_epsilon(1e-5, poisson=False)
    with pytest.raises(InvalidParameter, match="relation"):
        accountant.get_epsilon(1e-5, relation="replace")
    with pytest.raises(InvalidParameter, match="delta"):
        ProjectionAccountant().get_epsilon(1.5)


class Planned(Projecting):
    """An optimizer of this package, with a plan."""

    def __init__(self, **plan):
        given = {"relation": "add-remove", "sampling": "poisson", "sampling_rate": 0.01}
        self.plan = SimpleNamespace(**given | plan)


def test_a_plan_that_samples_otherwise_is_refused():
    hook = ProjectionAccountant().get_optimizer_hook_fn(0.01)
    hook(Planned())
    with pytest.raises(Refused, match="replace"):
        hook(Planned(relation="replace"))
    with pytest.raises(Refused, match="fixed"):
        hook(Planned(sampling="fixed"))
    with pytest.raises(InvalidParameter, match="sample_rate"):
        hook(Planned(sampling_rate=0.02))


# --- PEFT -----------------------------------------------------------------------------------------


def write(folder, name, **data):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(data))


def test_layers_of_a_peft_directory(tmp_path, capsys):
    base, home = tmp_path / "base", tmp_path / "adapter"
    write(base, "config.json", hidden_size=2048, intermediate_size=5632, num_hidden_layers=22)
    write(home, "adapter_config.json", peft_type="LORA", r=16, target_modules=["q_proj", "v_proj", "down_proj"],
          base_model_name_or_path=str(base), rank_pattern={"down_proj": 8}, bias="none")  # fmt: skip
    expected = (Layer(dim=2048, rank=16, count=44), Layer(dim=5632, rank=8, count=22))
    assert layers_from_peft(str(home)) == expected
    line = f"epsilon m2 --from-peft {home} --noise-multiplier 0.5 --delta 1e-5 --json"
    assert exit_code(line.split()) == 0
    shown = capsys.readouterr()
    known = privproj.epsilon(M2(layers=expected, noise_multiplier=0.5), delta=1e-5).value
    assert json.loads(shown.out)["value"] == known and "2048x16x44" in shown.err


def test_gpt2_and_bert_names(tmp_path):
    write(tmp_path, "config.json", n_embd=768, n_layer=12)
    write(tmp_path, "adapter_config.json", r=4, target_modules=["c_attn", "c_proj"])
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=768, rank=4, count=24), Layer(dim=3072, rank=4, count=12))
    write(tmp_path, "config.json", hidden_size=768, num_hidden_layers=12, intermediate_size=3072)
    write(tmp_path, "adapter_config.json", r=4, target_modules=["query", "dense"], layers_to_transform=[0, 1])
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=768, rank=4, count=6), Layer(dim=3072, rank=4, count=2))


@pytest.mark.parametrize(
    ("adapter", "config", "words"),
    [
        ({"r": 4, "target_modules": "all-linear"}, {}, "target_modules"),
        ({"r": 4, "target_modules": ["wq_a"]}, {"hidden_size": 8, "num_hidden_layers": 2}, "wq_a"),
        ({"r": 0, "target_modules": ["q_proj"]}, {"hidden_size": 8, "num_hidden_layers": 2}, "r=0"),
        ({"r": 4, "target_modules": ["q_proj"]}, {"num_hidden_layers": 2}, "hidden"),
        ({"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["head"]}, {"num_hidden_layers": 2}, "in full"),
        ({"r": 4, "target_modules": ["q_proj"], "bias": "all"}, {"num_hidden_layers": 2}, "in full"),
        ({"peft_type": "IA3", "r": 4}, {}, "LORA"),
    ],
)
def test_what_is_not_understood_is_said(tmp_path, adapter, config, words):
    write(tmp_path, "config.json", **config)
    write(tmp_path, "adapter_config.json", **adapter)
    with pytest.raises(InvalidParameter, match=words):
        layers_from_peft(str(tmp_path))


def test_a_missing_base_model_is_said(tmp_path):
    write(tmp_path, "adapter_config.json", r=4, target_modules=["q_proj"], base_model_name_or_path="hub/model")
    with pytest.raises(InvalidParameter, match="--base"):
        layers_from_peft(str(tmp_path))


@pytest.mark.parametrize("kind", [ProjectionPLDAccountant, ProjectionRdpAccountant])
def test_an_event_with_a_fixed_projection_is_refused(kind):
    fixed = M2(dim=64, rank=4, noise_multiplier=1.0, fixed_projection=True)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="fresh"):
        kind().compose(ReleaseDpEvent(fixed))


MODELS = {
    **{kind: {"num_key_value_heads": 1} for kind in ("llama", "mistral", "qwen2")},
    **{kind: {"num_key_value_heads": 1, "head_dim": 6} for kind in ("gemma", "gemma2", "qwen3")},
    "phi3": {"num_key_value_heads": 1, "pad_token_id": 0},
    **{kind: {} for kind in ("phi", "gpt_neox", "gpt2", "bert", "roberta")},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
}


def small_model(kind):
    """A small base model without memory for its weights, its configuration and the ends of its layers' names."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(kind, vocab_size=20, **{**sizes, **MODELS[kind]})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config) if kind not in ("bert", "roberta") else (
            transformers.AutoModel.from_config(config))  # fmt: skip
    linear = [name for name, part in model.named_modules() if type(part).__name__ in ("Linear", "Conv1D")]
    inside = sorted({name.split(".0.", 1)[1] for name in linear if ".0." in name})
    return model, config, linear, inside


def adapted_shapes(model):
    """``(inputs, rank)`` of every layer that PEFT has wrapped, by its factors."""
    factors = [part.lora_A["default"].weight.shape for part in model.modules() if hasattr(part, "lora_A")]
    return Counter((inputs, min(rank, inputs)) for rank, inputs in factors)


def random_adapter(draw, linear, inside):
    """Targets, exclusions, chosen blocks and patterns as people write them, and as they should not."""
    ends = draw.sample(inside, draw.randint(1, len(inside)))
    targets = draw.choice([
        ends, [end.split(".")[-1] for end in ends], draw.sample(linear, 3), "all-linear",
        r".*\.(" + "|".join(end.split(".")[-1] for end in ends) + ")",
    ])  # fmt: skip
    keys = [draw.choice([
        *linear, *inside, "^" + linear[0], linear[0].replace(".", r"\."), r".*\.[01]\..*", ends[0].split(".")[-1],
        r"\d\." + ends[0], linear[1][2:], "|".join(ends), ends[0] + "$", "nothing",
    ]) for _ in range(draw.randint(0, 3))]  # fmt: skip
    given = {"target_modules": targets, "rank_pattern": {key: draw.choice([2, 7, 40]) for key in keys}}
    if draw.random() < 0.3:
        given["exclude_modules"] = draw.choice([[ends[0]], r".*\.1\..*", [linear[0]]])
    if draw.random() < 0.4 and isinstance(targets, list):
        given["layers_to_transform"] = draw.choice([0, [1, 2], [2], []])
        given["layers_pattern"] = draw.choice([None, [], linear[0].split(".0.")[0].split(".")[-1], ["no", "layers"]])
    return given


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MODELS)
def test_layers_are_those_that_peft_adapts(tmp_path, kind):
    peft = pytest.importorskip("peft")
    draw, answered = random.Random(kind), 0
    for trial in range(12):
        model, config, linear, inside = small_model(kind)
        given = random_adapter(draw, linear, inside)
        task = draw.choice([None, "CAUSAL_LM"]) if kind not in ("bert", "roberta") else None
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
        write(tmp_path, "adapter_config.json", peft_type="LORA", r=4, task_type=task, **given)
        try:
            layers = layers_from_peft(str(tmp_path))
        except InvalidParameter:
            continue
        wrapped = peft.tuners.lora.LoraModel(model, peft.LoraConfig(r=4, **given), "default", low_cpu_mem_usage=True)
        assert {(layer.dim, layer.rank): layer.count for layer in layers} == adapted_shapes(wrapped), (trial, given)
        answered += 1
    assert answered >= 2


def test_patterns_and_targets_match_as_in_peft():
    other = pytest.importorskip("peft.utils.other")
    check, config = pytest.importorskip("peft.tuners.tuners_utils").check_target_module_exists, peft_config
    draw = random.Random(1)
    words = ["model", "layers", "h", "self_attn", "q_proj", "v_proj", "mlp", "0", "1", "11"]
    pieces = [*words, r"\d+", ".*", "^model", "q_proj|v_proj", "(q|v)_proj", r"\.", "q", "proj$", "[0-5]"]
    hits = 0
    for _ in range(4000):
        name = ".".join(draw.choices(words, k=draw.randint(1, 6)))
        keys = [".".join(draw.choices(pieces, k=draw.randint(1, 3))) for _ in range(3)]
        assert peft_rules.pattern_key(keys, name) == other.get_pattern_key(keys, name), (keys, name)
        assert peft_rules.known_rule(keys, name) == other.get_pattern_key(keys, name), (keys, name)
        given = {
            "target_modules": draw.choice([draw.sample(words, 2), [name], keys[0]]),
            "exclude_modules": draw.choice([None, None, ["11"], keys[1]]),
        }
        if isinstance(given["target_modules"], list):
            given["layers_to_transform"] = draw.choice([None, 0, [1, 11], []])
            given["layers_pattern"] = draw.choice([None, "layers", ["h", "layers"]])
        found = bool(check(config(**given), name))
        assert peft_rules.is_target(given, name) == found, (given, name)
        hits += found
    assert hits > 500


def peft_config(**given):
    """PEFT's configuration, where it takes what is given."""
    if given.get("layers_pattern") and given.get("layers_to_transform") is None:
        given["layers_pattern"] = None
    return pytest.importorskip("peft").LoraConfig(r=4, **given)


def llama(folder, **adapter):
    write(folder, "config.json", model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=4)
    adapter = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "down_proj"], **adapter}
    write(folder, "adapter_config.json", **{key: value for key, value in adapter.items() if value != "absent"})
    return str(folder)


@pytest.mark.parametrize(
    ("keys", "shapes"),
    [
        ({"q_proj": 8}, {(64, 8): 4, (96, 4): 4}),
        ({"self_attn.q_proj": 8}, {(64, 8): 4, (96, 4): 4}),
        ({"model.layers.0.self_attn.q_proj": 8}, {(64, 8): 1, (64, 4): 3, (96, 4): 4}),
        ({"^model.layers.0.self_attn.q_proj": 8}, {(64, 8): 1, (64, 4): 3, (96, 4): 4}),
        ({r"layers\.[23]\..*": 8}, {(64, 8): 2, (64, 4): 2, (96, 8): 2, (96, 4): 2}),
        ({"q_proj|down_proj": 8}, {(64, 8): 4, (96, 8): 4}),
        ({"layers.1.mlp.down_proj": 200, "down_proj": 2}, {(64, 4): 4, (96, 96): 1, (96, 2): 3}),
        ({"down_proj": 2, "layers.1.mlp.down_proj": 200}, {(64, 4): 4, (96, 2): 4}),
    ],
)
def test_ranks_follow_patterns_of_names(tmp_path, keys, shapes):
    pytest.importorskip("peft")
    layers = layers_from_peft(llama(tmp_path, rank_pattern=keys))
    assert {(layer.dim, layer.rank): layer.count for layer in layers} == shapes


def test_without_peft_all_its_versions_must_agree_on_a_pattern(tmp_path, monkeypatch):
    def missing(_):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    layers = layers_from_peft(llama(tmp_path, rank_pattern={"self_attn.q_proj": 8}))
    assert layers == (Layer(dim=64, rank=8, count=4), Layer(dim=96, rank=4, count=4))
    with pytest.raises(InvalidParameter, match="every version"):
        layers_from_peft(llama(tmp_path, rank_pattern={"^model.layers.0.self_attn.q_proj": 8}))


def test_every_key_of_peft_is_known_and_its_default_is_answered(tmp_path):
    peft = pytest.importorskip("peft")
    keys = peft.LoraConfig().to_dict()
    known = {*peft_rules.HARMLESS, *peft_rules.READ, *peft_rules.REFUSED}
    assert set(keys) <= known and not set(peft_rules.HARMLESS) & {*peft_rules.READ, *peft_rules.REFUSED}
    peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]).save_pretrained(tmp_path)
    write(tmp_path, "config.json", model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=4)
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=64, rank=4, count=4), Layer(dim=96, rank=4, count=4))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lora_bias", True), ("bias", "all"), ("bias", "lora_only"), ("use_dora", True), ("modules_to_save", ["head"]),
        ("trainable_token_indices", [1]), ("trainable_token_indices", {"embed_tokens": [1]}),
        ("target_parameters", ["experts.up"]), ("init_lora_weights", "pissa"), ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"), ("init_lora_weights", "loftq"), ("init_lora_weights", "eva"),
        ("init_lora_weights", "corda"), ("init_lora_weights", "mica"), ("init_lora_weights", False),
        ("init_lora_weights", 1), ("loftq_config", {"loftq_bits": 4}), ("eva_config", {"rho": 2.0}),
        ("megatron_config", {"x": 1}), ("alora_invocation_tokens", [5]), ("layer_replication", [[0, 4], [2, 4]]),
        ("use_qalora", True), ("use_bdlora", {"nblocks": 2}), ("ensure_weight_tying", True),
        ("arrow_config", {"top_k": 3}), ("task_type", "SEQ_CLS"), ("task_type", "TOKEN_CLS"), ("task_type", 3),
        ("peft_type", "ADALORA"), ("peft_type", ["LORA"]), ("train_more", True), ("train_more", "all"), ("r", True),
        ("r", "16"), ("r", 2.5), ("r", None), ("r", "absent"), ("rank_pattern", []), ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", {"q_proj": "8"}), ("rank_pattern", {"q_porj": 8}), ("rank_pattern", {"(": 8}),
        ("rank_pattern", {"(?i)q_proj": 8}), ("alpha_pattern", 3), ("lora_alpha", "big"), ("use_rslora", "yes"),
        ("target_modules", None), ("target_modules", []), ("target_modules", [3]), ("target_modules", "q_proj"),
        ("target_modules", "("), ("target_modules", ".*"), ("target_modules", ["q_proj", "lm_head"]),
        ("target_modules", r".*(q_proj|embed_tokens)"), ("target_modules", "absent"), ("exclude_modules", 3),
        ("exclude_modules", ["q_proj", "down_proj"]), ("layers_to_transform", [4]), ("layers_to_transform", "0"),
        ("layers_to_transform", [True]), ("layers_to_transform", -1), ("layers_pattern", "layers"),
        ("base_model_name_or_path", 3),
    ],
)  # fmt: skip
def test_what_else_is_trained_is_refused(tmp_path, key, value):
    with pytest.raises(InvalidParameter) as caught:
        layers_from_peft(llama(tmp_path, **{key: value}))
    assert key in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["use_dora", "train_more", "lora_bias", "eva_config", "modules_to_save"])
def test_a_key_that_is_switched_off_changes_nothing(tmp_path, key):
    known = layers_from_peft(llama(tmp_path))
    for value in (None, False, [], {}):
        assert layers_from_peft(llama(tmp_path, **{key: value})) == known


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "unknown"}, "model_type"), ({"model_type": ["llama"]}, "model_type"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"), ({"num_hidden_layers": 10**9}, "blocks"),
        ({"hidden_size": "64"}, "hidden_size"), ({"hidden_size": True}, "hidden_size"), ({"n_embd": 32}, None),
        ({"num_experts": 8}, "experts"), ({"is_encoder_decoder": True}, "decoder"),
        ({"intermediate_size": None}, "intermediate_size"), ({"model_type": "gemma"}, None),
        ({"model_type": "bert"}, "q_proj"),
    ],
)  # fmt: skip
def test_a_base_model_that_is_not_understood_is_said(tmp_path, config, words):
    home = llama(tmp_path)
    sizes = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **config}))
    if words is None:
        assert layers_from_peft(home)
        return
    with pytest.raises(InvalidParameter, match=words):
        layers_from_peft(home)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"r": 4, "r": 64, "target_modules": ["q_proj"]}', '{"r": NaN}', "[" * 10**5, "\x00",
     '{"rank_pattern": {"q_proj": 64, "q_proj": 4}, "r": 4, "target_modules": ["q_proj"]}', "1" * 5000],
)  # fmt: skip
def test_a_damaged_file_is_one_sentence(tmp_path, text, capsys):
    home = llama(tmp_path)
    (tmp_path / "adapter_config.json").write_text(text)
    assert exit_code(["epsilon", "m2", "--from-peft", home, "--noise-multiplier", "1", "--delta", "1e-5"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1


# --- saved adapters -------------------------------------------------------------------------------


def save_tensors(path, shapes, cut=0):
    """A safetensors file with float32 tensors of these shapes."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes((len(text).to_bytes(8, "little") + text + bytes(end))[: -cut or None])


def factors(shapes):
    """The A and B of layers ``{name: (outputs, inputs, rank)}`` as PEFT names them."""
    found = {}
    for name, (outputs, inputs, rank) in shapes.items():
        found[f"base_model.model.{name}.lora_A.weight"] = [rank, inputs]
        found[f"base_model.model.{name}.lora_B.weight"] = [outputs, rank]
    return found


def test_a_saved_adapter_names_the_layers_of_any_model(tmp_path):
    write(tmp_path, "adapter_config.json", r=4, target_modules=["wq", "wo"], rank_pattern={"wo": 3})
    named = {"blocks.0.wq": (8, 12, 4), "blocks.1.wq": (8, 12, 4), "blocks.0.wo": (12, 8, 3)}
    save_tensors(tmp_path / "adapter_model.safetensors", factors(named))
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=8, rank=3), Layer(dim=12, rank=4, count=2))


NAMED = {f"model.layers.{i}.{end}": shape for i in range(4)
         for end, shape in (("self_attn.q_proj", (64, 64, 4)), ("mlp.down_proj", (64, 96, 4)))}  # fmt: skip
FIRST = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (factors(NAMED | {FIRST: (64, 64, 8)}), "rank 4"),
        (factors(NAMED | {FIRST: (64, 32, 4)}), "the layers"),
        (factors({name: shape for name, shape in NAMED.items() if ".3." not in name}), "the layers"),
        (factors(NAMED | {"model.layers.0.self_attn.v_proj": (64, 64, 4)}), "target_modules"),
        (factors(NAMED) | {"base_model.model.lm_head.weight": [20, 64]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_B.bias": [64]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_magnitude_vector": [64]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_A.weight": [4, 64, 1, 1]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_B.weight": [64, 3]}, "rank x inputs"),
        ({name: shape for name, shape in factors(NAMED).items() if f"{FIRST}.lora_B" not in name}, "rank x inputs"),
        ({}, "no tensor"),
    ],
)
def test_a_saved_adapter_that_contradicts_its_configuration_is_refused(tmp_path, tensors, words):
    home = llama(tmp_path)
    save_tensors(tmp_path / "adapter_model.safetensors", factors(NAMED))
    known = layers_from_peft(home)
    assert known == (Layer(dim=64, rank=4, count=4), Layer(dim=96, rank=4, count=4))
    save_tensors(tmp_path / "adapter_model.safetensors", tensors)
    with pytest.raises(InvalidParameter, match=words):
        layers_from_peft(home)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"[]", "cut", "entry"])
def test_a_damaged_saved_adapter_is_refused(tmp_path, damage):
    home, path = llama(tmp_path), tmp_path / "adapter_model.safetensors"
    save_tensors(path, factors(NAMED), cut=4)
    if damage == "entry":
        damage = (8).to_bytes(8, "little") + b'{"a": 1}'
    if damage != "cut":
        path.write_bytes(damage)
    with pytest.raises(InvalidParameter, match="safetensors"):
        layers_from_peft(home)


# --- what is accounted is what is trained -----------------------------------------------------------


def peft_model(**adapter):
    """A small language model wrapped by PEFT."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, num_key_value_heads=1, **sizes))
    given = {"r": 4, "target_modules": ["q_proj", "o_proj", "down_proj"], **adapter}
    return peft.get_peft_model(model, peft.LoraConfig(**given))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize(
    "adapter",
    [
        {},
        {"rank_pattern": {r"layers\.[12]\.mlp.down_proj": 9, "^model.layers.0.self_attn.q_proj": 2, "o_proj": 7}},
        {
            "rank_pattern": {"0.self_attn.o_proj": 2},
            "layers_to_transform": [0, 2],
            "lora_alpha": 32,
            "use_rslora": True,
        },
    ],
)
def test_the_layers_accounted_are_the_layers_trained(tmp_path, adapter, saved):
    torch = pytest.importorskip("torch")
    training = pytest.importorskip("privproj.training")
    model = peft_model(**adapter)
    if saved:
        model.save_pretrained(tmp_path)
    else:
        given = {"r": 4, "target_modules": ["q_proj", "o_proj", "down_proj"], **adapter}
        write(tmp_path, "adapter_config.json", peft_type="LORA", **given)
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()))
    accounted = {(layer.dim, layer.rank): layer.count for layer in layers_from_peft(str(tmp_path))}
    tokens = torch.randint(0, 20, (4, 5), generator=torch.Generator().manual_seed(0))
    training.prepare_peft(model, "m2")
    trained = [p for p in model.parameters() if p.requires_grad]
    _, optimizer, loader = training.make_private(
        module=model, optimizer=torch.optim.SGD(trained, lr=0.1), algorithm="m2", max_grad_norm=1.0, steps=1,
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=4),
        noise_multiplier=1.0,
    )  # fmt: skip
    assert {(layer.dim, layer.rank): layer.count for layer in optimizer.plan.mechanism.layers} == accounted
    assert Counter((view.q.shape[0], view.q.shape[1]) for view in drawn(optimizer, model, loader)) == accounted


def drawn(optimizer, model, loader):
    """The views of an optimizer after one step, with the projections that they drew."""
    torch = pytest.importorskip("torch")
    for (rows,) in loader:
        logits = model(input_ids=rows).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        optimizer.backward(losses.view(len(rows), -1).mean(1))
        optimizer.step()
    return optimizer.views


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "adapter", [{"use_dora": True}, {"target_modules": ["q_proj", "embed_tokens"]}, {"init_lora_weights": "mica"}]
)
@pytest.mark.parametrize("algorithm", ["m2", "lora-fa"])
def test_adapters_that_are_more_than_b_a_are_not_trained(adapter, algorithm):
    training = pytest.importorskip("privproj.training")
    with pytest.raises(InvalidParameter, match="plain LoRA"):
        training.prepare_peft(peft_model(**adapter), algorithm)
