"""The budget of a run in two stages."""

import pytest

from privproj.accounting.schedule import dp_sft


@pytest.mark.full
def test_dp_sft_budgets():
    target = {"epsilon": 4, "delta": 1e-5, "sampling_rate": 0.01, "steps": (1000, 1000)}
    split, joint = dp_sft(**target, budget="split"), dp_sft(**target)
    noise = [[p.mechanism.noise_multiplier for p in s.phases] for s in (split, joint)]
    assert noise[0] == [pytest.approx(0.8204, rel=2e-4, abs=0), pytest.approx(1.5065, rel=1.5e-3, abs=0)]
    for before, after in zip(*noise, strict=True):
        assert after / before == pytest.approx(0.908, abs=0.003, rel=0)
    assert 3.999 < joint.epsilon(delta=1e-5).value <= 4.0
    public = dp_sft(**target, public=True)
    assert len(public.phases) == 1
    assert public.phases[0].mechanism.noise_multiplier < noise[1][1]
