"""Other packages: real dp-accounting, real Opacus where it is installed, PEFT's files."""

import json
import subprocess
import sys

import dp_accounting
import pytest
from privproj_cli.main import exit_code

import privproj
from privproj import M2, Gaussian, InvalidParameter, Laplace, Layer
from privproj.integrations.dp_accounting import ProjectionPLDAccountant, ProjectionRdpAccountant, ReleaseDpEvent
from privproj.integrations.opacus import ProjectionAccountant, ReleasesProjection
from privproj.integrations.peft import layers_from_peft
from privproj.schedule import from_data

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
    accountant.compose(ReleaseDpEvent(Gaussian(noise_multiplier=1.0)))
    known = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, relation="replace").value
    assert accountant.get_epsilon(1e-5) == pytest.approx(known, rel=1e-3, abs=0)


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


@pytest.mark.filterwarnings("ignore")
def test_a_stock_opacus_optimizer_never_yields_an_m2_number():
    torch = pytest.importorskip("torch")
    opacus = pytest.importorskip("opacus")
    from privproj.integrations.opacus import register

    register()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    engine = opacus.PrivacyEngine(accountant="privproj")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=8), noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    accountant = engine.accountant
    assert {mechanism.name for mechanism, _, _ in accountant.history} == {"gaussian"}
    known = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-3, steps=len(accountant), sampling_rate=0.125)
    assert engine.get_epsilon(1e-3) == known.value


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
