"""Implement ``privproj certify``, which proves results in ball arithmetic."""

from dataclasses import replace
from functools import partial
from typing import Any

from privproj_cli.kinds import read_run_file
from privproj_cli.options import (
    Group,
    Once,
    command_with,
    file_argument,
    json_option,
    option,
    option_of,
    verbose_option,
)
from privproj_cli.query import QueryGroup, bound_option, refuted_option, show_result
from privproj_cli.run import show_run

import privproj
from privproj.contrib.certify.certificate import prove
from privproj.errors import InvalidParameterError, QueryError
from privproj.io.files import check_not_same_file
from privproj.mechanisms.base import Mechanism
from privproj.numerics.interval import UNKNOWN
from privproj.result import Outcome, Result
from privproj.run import RunOptions
from privproj.targets import TARGET_PARAMETERS


def proof_option() -> Once:
    """Return the option ``--output``, the file for the certificate."""
    return Once(["--output", "-o"], help="Save the proof as JSON, for `privproj verify`.", metavar="FILE")


def proved(result: Result, path: str | None) -> Result:
    """Prove a result in ball arithmetic, and return it with the proved value.

    The certificate is saved to ``path``, unless ``path`` is None.
    """
    try:
        result, certificate = prove(result)
    except QueryError as error:
        error.result = replace(result, value=None, interval=UNKNOWN, outcome=Outcome(error.outcome))
        raise
    if path is not None:
        certificate.save(path)
    return result


def certify_query(
    quantity: str, mechanism: Mechanism, run: RunOptions, clip: float | None, json: bool, verbose: bool,
    output: str | None, **options: Any,
) -> int:  # fmt: skip
    """Evaluate a query, prove and print its result, and return the exit code."""
    result = getattr(privproj, quantity)(mechanism, **options, **run)
    return show_result(proved(result, output), mechanism, run, clip, json, verbose)


class CertifiedQueries(QueryGroup):
    """The commands ``privproj certify QUANTITY MECHANISM``.

    Each has the help of ``privproj QUANTITY MECHANISM``.
    """

    path = "privproj certify"


class Queries(Group):
    """The group of commands ``privproj certify QUANTITY``."""

    members = "epsilon, delta, sigma or run"


command = Queries("certify", help="Prove epsilon, delta or sigma in ball arithmetic (extra: certify).")

for quantity in ("epsilon", "delta", "sigma"):
    clip = option("--clip", "Print the noise standard deviation for this clipping norm.", metavar="C")
    options = [json_option(), verbose_option(), bound_option(), refuted_option(), proof_option(), clip]
    command.add_command(CertifiedQueries(quantity, partial(certify_query, quantity), options))


@command.add_command
@command_with(
    "run",
    file_argument(),
    *(option_of(name, TARGET_PARAMETERS[name]) for name in ("epsilon", "delta")),
    proof_option(),
    json_option(),
    verbose_option(),
)
def certify_run(
    file: str, epsilon: float | None, delta: float | None, output: str | None, json: bool, verbose: bool
) -> int:
    """Prove epsilon or delta of a run file in ball arithmetic.

    \b
    Example:
      privproj certify run examples/run.toml --delta 1e-5
    """
    check_not_same_file("--output", output, file)
    if (epsilon is None) == (delta is None):
        raise InvalidParameterError(
            "--delta", delta, "omitted if --epsilon is given" if delta is not None else "a delta"
        )
    schedule = read_run_file(file)
    result = schedule.epsilon(delta=delta) if epsilon is None else schedule.delta(epsilon=epsilon)  # pyright: ignore
    return show_run(proved(result, output), schedule, None, json, verbose)
