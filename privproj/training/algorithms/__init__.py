"""The training algorithms, one family per file, and their registry.

A new algorithm needs a file here with its record, a line in :data:`FILES`, and a test. The record is a
:class:`privproj.training.view.Algorithm`. A file is imported at the first use of its algorithm. The registry does not
import torch, so that the command line lists the algorithms quickly.
"""

from importlib import import_module
from typing import Any

from privproj.errors import unknown_name

FILES = {
    "dp-sgd": "dp_sgd",
    "lora-fa": "lora",
    "lora-resampled": "lora",
    "flora": "projected",
    "m2": "projected",
    "m2-projected-clip": "projected",
    "projected-dp-sgd": "projected",
    "prism": "prism",
    "dp-sft": "subspace",
}
"""For every algorithm the file in this folder that holds its record, in the order in which users see them."""

ALGORITHMS = tuple(FILES)
"""The names of all training algorithms, in the order in which users see them."""

MEMBERSHIP_ALGORITHMS = ("dp-sgd", "lora-fa", "m2", "m2-projected-clip", "projected-dp-sgd")
"""The names of the algorithms that ``privproj audit membership`` offers."""


def load(name: str) -> Any:
    """Return the record of a training algorithm, imported from its file.

    Args:
        name: One of :data:`ALGORITHMS`.

    Returns:
        Its :class:`privproj.training.view.Algorithm`.

    Raises:
        InvalidParameterError: There is no algorithm of that name.

    >>> from privproj.training.algorithms import load
    >>> load("dp-sgd").summary
    "Clip every record's gradient, add noise to the sum."
    """
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, "algorithm", ALGORITHMS)
    records = import_module(f"{__name__}.{FILES[name]}").RECORDS
    return next(record for record in records if record.name == name)
