"""List the training algorithms, and import their definitions at first use.

To add an algorithm, write a file in this folder, add a line to :data:`FILES`, and write a test. The tuple ``RECORDS``
of the file has one :class:`privproj.training.view.Algorithm` for each algorithm. This module does not import torch.
"""

from importlib import import_module
from typing import Any

from privproj.errors import unknown_name

# for each algorithm the file in this folder with its record, in the order in which users see the algorithms
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

ALGORITHMS = tuple(FILES)  # names of all training algorithms, in the order in which users see them

# names of the algorithms that ``privproj audit membership`` offers
MEMBERSHIP_ALGORITHMS = ("dp-sgd", "lora-fa", "m2", "m2-projected-clip", "projected-dp-sgd")


def load(name: str) -> Any:
    """Return the definition of a training algorithm, imported at first use.

    Args:
        name: One of :data:`ALGORITHMS`.

    Returns:
        The definition, a :class:`privproj.training.view.Algorithm`.

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
