"""The registry of training algorithms: plain text that costs nothing, and records that say the same."""

import subprocess
import sys

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError
from privproj.training.algorithms import ALGORITHMS, FILES, MEMBERSHIP_ALGORITHMS, load


def test_names_cost_neither_torch_nor_numpy():
    code = (
        "import sys, privproj_cli.train, privproj.training;"
        "assert not {'torch', 'opacus', 'numpy', 'scipy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_where_torch_is_missing_the_import_error_names_the_extra(monkeypatch):
    import privproj.training

    for name in [name for name in sys.modules if name.startswith("privproj.training.private")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(privproj.training), "make_private", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"training.make_private needs torch.* pip install .*\[torch\]"):
        privproj.training.make_private  # noqa: B018


def test_names_are_the_published_ones():
    projected = "m2", "m2-projected-clip", "projected-dp-sgd"
    published = "dp-sgd", "lora-fa", "lora-resampled", "flora", *projected, "prism", "dp-sft"
    assert tuple(name for name in ALGORITHMS if name in published) == published
    assert {"dp-sgd", "lora-fa", *projected} <= set(MEMBERSHIP_ALGORITHMS) <= set(ALGORITHMS)


@pytest.mark.parametrize("name", ["sgd", "", None, ["m2"], "M2"])
def test_other_names_are_rejected(name):
    with pytest.raises(InvalidParameterError, match="unknown algorithm"):
        load(name)


def test_every_record_has_a_line_and_every_public_name_a_home():
    needs("torch")
    from importlib import import_module

    import privproj.training

    files = {name: import_module(f"privproj.training.algorithms.{name}") for name in FILES.values()}
    assert sorted(record.name for file in files.values() for record in file.RECORDS) == sorted(ALGORITHMS)
    for name in privproj.training.__all__:
        assert getattr(privproj.training, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute"):
        privproj.training.nothing  # noqa: B018
