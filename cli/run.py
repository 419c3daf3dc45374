"""Implement ``privproj run`` and ``dp-sft``: phases that are composed jointly."""

from typing import Any

from privproj.accounting.gdp import DEFAULT_SLACK, gdp_mu
from privproj.accounting.schedule import SEARCH_SHARE, Composition, calibrate_noise, dp_sft
from privproj.errors import InvalidParameterError
from privproj.io.files import check_not_same_file, write_data
from privproj.parameters import whole_number
from privproj.result import Result
from privproj.targets import RISKS, TARGET_PARAMETERS

from . import render
from .kinds import read_run_file
from .options import (
    Number,
    Once,
    OneOf,
    command_with,
    file_argument,
    json_option,
    option,
    option_of,
    options_from,
    verbose_option,
)
from .query import show

COUNT = Number(whole_number().check)  # number of steps


@command_with(
    "run",
    file_argument(),
    *(option_of(name, TARGET_PARAMETERS[name]) for name in ("epsilon", "delta", *RISKS)),
    option(
        "--calibrate", "Scale the noise of all phases to meet --epsilon and --delta, or the attack risk.", is_flag=True
    ),
    Once(["--output", "-o"], help="Write the phases to a run file (.toml or .json).", metavar="FILE"),
    json_option(),
    verbose_option(),
    option("--gdp", "Compute one GDP mu for the run. --delta is the slack.  [default: 1e-9]", is_flag=True),
)
def run_command(
    file: str, epsilon: float | None, delta: float | None, calibrate: bool, output: str | None, json: bool,
    gdp: bool, verbose: bool, **risk: float | None,
) -> int:  # fmt: skip
    """Compute epsilon or delta of all phases of a run file together.

    With --calibrate, one factor scales all noise multipliers such that the run meets --epsilon and --delta, or an
    attack risk (--advantage, or --tpr and --fpr).

    \b
    A run file in TOML lists the phases; each has a mechanism, sampling and steps:
      [[phase]]
      mechanism = "m2"
      dim = 2048
      rank = 16
      noise_multiplier = 0.2
      sampling_rate = 0.01
      steps = 1000

    A phase may also be an event of dp-accounting: event = { type = "ZCDpEvent", rho = 0.1 }
    """
    check_not_same_file("--output", output, file)
    schedule = read_run_file(file)
    of_risk = any(value is not None for value in risk.values())
    if gdp:
        if of_risk or calibrate or epsilon is not None:
            raise InvalidParameterError(
                "--gdp", True, "the only target", "only --delta can be given with it, as the slack"
            )
        result = gdp_mu(schedule, delta=DEFAULT_SLACK if delta is None else delta)
        return show_run(result, schedule, output, json, verbose)
    _check_target(epsilon, delta, of_risk, calibrate)
    if calibrate:
        schedule = calibrate_noise(schedule, epsilon=epsilon, delta=delta, **risk)
    if of_risk:
        result = schedule.risk(**risk)
    elif delta is None:
        assert epsilon is not None
        result = schedule.delta(epsilon=epsilon)
    else:
        result = schedule.epsilon(delta=delta)
    return show_run(result, schedule, output, json, verbose, calibrate)


def show_run(
    result: Result, schedule: Composition, output: str | None, json: bool, verbose: bool, calibrated: bool = False,
    notes: dict[str, str] | None = None,
) -> int:  # fmt: skip
    """Print the result of a run file, and return the exit code.

    ``output`` is a run file to write, or None. If ``calibrated``, noise multipliers are printed. ``notes`` are further
    lines by label.
    """
    if output is not None:
        write_data(output, schedule.as_dict())
    from privproj.accounting.lower_bounds import with_details

    def text() -> str:
        return render.run_text(with_details(result) if verbose else result, verbose, calibrated, notes)

    return show(result, json, text)


def _check_target(epsilon: float | None, delta: float | None, of_risk: bool, calibrate: bool) -> None:
    """Raise :class:`InvalidParameterError` unless the options state one valid target.

    The target is epsilon or delta. With ``--calibrate`` it is both, or an attack risk.
    """
    if calibrate:
        if not of_risk and (epsilon is None or delta is None):
            missing = "--epsilon" if epsilon is None else "--delta"
            raise InvalidParameterError(
                missing, "nothing", "a target", "--calibrate needs --epsilon and --delta, or an attack risk"
            )
    elif of_risk:
        raise InvalidParameterError(
            "--calibrate", "nothing", "a flag", "give --calibrate with --advantage, --tpr or --fpr"
        )
    elif (epsilon is None) == (delta is None):
        raise InvalidParameterError(
            "--delta",
            delta,
            "omitted if --epsilon is given, except with --calibrate" if delta is not None else "a delta",
        )


@command_with(
    "dp-sft",
    *options_from(dp_sft, "epsilon", "delta", "sampling_rate", "share"),
    option("--subspace-steps", "Number of steps of the subspace search.", metavar="T1", required=True, type=COUNT),
    option("--steps", "Number of training steps.", metavar="T2", required=True, type=COUNT),
    option(
        "--budget",
        "joint: scale the noise of both stages by one factor until both together meet the target. split: each stage "
        "meets its share.  [default: joint]",
        type=OneOf(["joint", "split"]),
    ),
    option("--public", "Declare that the subspace comes from public data.", is_flag=True),
    Once(["--output", "-o"], help="Write the phases to a run file (.toml or .json).", metavar="FILE"),
    json_option(),
    verbose_option(),
)
def dp_sft_command(
    subspace_steps: float, steps: float, budget: str | None, public: bool, output: str | None, json: bool,
    verbose: bool, **options: Any,
) -> int:  # fmt: skip
    """Calibrate the noise multipliers of DP-SFT: a private subspace search, then training within the subspace.

    \b
    Example:
      privproj dp-sft --epsilon 4 --delta 1e-5 --sampling-rate 0.01 --subspace-steps 1000 --steps 1000
    """
    for name, value in (("--share", options["share"]), ("--budget", budget)):
        if public and value is not None:
            raise InvalidParameterError(name, value, "omitted with --public", "only one stage uses private data")
    options |= {"steps": (subspace_steps, steps), "budget": budget, "public": public}
    schedule = dp_sft(**{name: value for name, value in options.items() if value is not None})
    result = schedule.epsilon(delta=options["delta"])
    share = options["share"] or SEARCH_SHARE
    parts = [
        f"epsilon {part * options['epsilon']:g} and delta {part * options['delta']:g}" for part in (share, 1 - share)
    ]
    notes = {"budget": f"{parts[0]} for the subspace, {parts[1]} for the training"} if budget == "split" else {}
    return show_run(result, schedule, output, json, verbose, calibrated=True, notes=notes)


COMMANDS = {"run": run_command, "dp-sft": dp_sft_command}
