"""The training algorithms, one family per file, and their registry.

A new algorithm is three things: one file here with its record, one line in :data:`LINES`, and one test. The record is a
:class:`privproj.training.view.Algorithm`. A file is imported when its algorithm is asked for. The
registry itself is plain text and loads no torch, so that the command line can name the algorithms cheaply.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from privproj.errors import unknown_name

if TYPE_CHECKING:
    from privproj.training.view import Algorithm


class _Line(NamedTuple):
    """One line of the registry.

    ``name`` is what users call the algorithm, ``file`` the file in this folder that holds its record, ``membership``
    says whether ``privproj audit membership`` offers it.
    """

    name: str
    file: str
    membership: bool = False


LINES = (
    _Line("dp-sgd", "dp_sgd", membership=True),
    _Line("lora-fa", "lora", membership=True),
    _Line("lora-resampled", "lora"),
    _Line("flora", "projected"),
    _Line("m2", "projected", membership=True),
    _Line("m2-projected-clip", "projected", membership=True),
    _Line("m1", "projected", membership=True),
    _Line("prism", "prism"),
    _Line("dp-sft", "subspace"),
)
"""Every algorithm, in the order in which users see them."""

ALGORITHMS = tuple(line.name for line in LINES)
"""The names of all training algorithms, in the order in which users see them. Contract."""

MEMBERSHIP_ALGORITHMS = tuple(line.name for line in LINES if line.membership)
"""The names of the algorithms that ``privproj audit membership`` offers. Contract."""


def load(name: str) -> "Algorithm":
    """Load the record of a training algorithm from its file.

    Args:
        name: One of :data:`ALGORITHMS`.

    Returns:
        Its :class:`privproj.training.view.Algorithm`.

    Raises:
        InvalidParameter: There is no algorithm of that name.

    >>> from privproj.training.algorithms import load
    >>> load("dp-sgd").summary
    "Clip every record's gradient, add noise to the sum."
    """
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, "an algorithm", ALGORITHMS)
    file = LINES[ALGORITHMS.index(name)].file
    records: tuple[Algorithm, ...] = import_module(f"{__name__}.{file}").RECORDS
    return next(record for record in records if record.name == name)
