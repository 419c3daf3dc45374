"""Flags are true or false, and a layer is its text."""

import random

import pytest

from privproj import M1, M2, InvalidParameterError, Layer, PublicSketch, Sketch, Wishart


@pytest.mark.parametrize("kind", [M1, M2, Wishart, Sketch, PublicSketch])
def test_flag_must_be_true_or_false(kind):
    given = {"dim": 8, "rank": 2, "gamma": 30, "noise_multiplier": 1, "misalignment": 1e-6}
    own = {name: value for name, value in given.items() if name in kind.__dataclass_fields__ and kind is not M1}
    for flag in {"fixed_projection", "enforced"} & set(kind.__dataclass_fields__):
        for value in ("false", 1, 0, None, [True]):
            with pytest.raises(InvalidParameterError, match="true or false"):
                kind(**{"dim": 8, "rank": 2} if kind is M1 else own, **{flag: value})


def test_layer_round_trips_through_text():
    draw = random.Random(5)
    for _ in range(200):
        share = draw.choice([None, draw.random() or 0.5, 1 / draw.randint(1, 99)])
        layer = Layer(dim=draw.randint(9, 999), rank=draw.randint(1, 9), count=draw.randint(1, 99), share=share)
        assert Layer.parse(str(layer)) == layer
    for text in (
        "8",
        "8x",
        "8x4@",
        "8x4x",
        "x4",
        "8x4x2x1",
        "8x4@nan",
        "8 x4",
        "8_0x4",
        "\u0668x4",
        "8x4@-1",
        84,
        None,
    ):
        with pytest.raises(InvalidParameterError, match="layer"):
            Layer.parse(text)


def test_layer_error_shows_a_correct_call():
    with pytest.raises(InvalidParameterError, match=r"Write Layer\(dim=1024, rank=16\)"):
        Layer(1024, 16)
    with pytest.raises(InvalidParameterError, match=r"got \(1024, 16\). Write Layer\(dim="):
        M2(layers=[(1024, 16)], noise_multiplier=1.0)
