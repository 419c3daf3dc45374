"""Implement ``privproj train``: train a small model privately, and report epsilon."""

from pathlib import Path
from typing import Any

import click

from privproj.errors import InvalidParameterError
from privproj.io.files import write_text
from privproj.lazy import import_extra
from privproj.parameters import parameters_of
from privproj.plugins import load, plugin_table
from privproj.result import round_outward
from privproj.training.settings import Settings

from . import render
from .options import Once, command_with, json_option, option, option_of
from .output import bar, complain
from .query import EXIT_CODES


@command_with(
    "train",
    *(option_of(name, declared) for name, declared in parameters_of(Settings).items()),
    Once(["--output", "-o"], help="Set the folder of the run.  [default: privproj-train, numbered]", metavar="DIR"),
    option("--resume", "Resume the run in this folder.", type=str, metavar="DIR"),
    json_option(),
)
def command(output: str | None, resume: str | None, json: bool, **options: Any) -> int:
    """Train a linear head or a small network with the noise multiplier that meets a target, and report epsilon.

    The folder of a run contains the ledger, the checkpoint and the report. The ledger records every release before it
    is used. --resume DIR continues an interrupted run.

    \b
    Example:
      privproj train --data digits --mechanism m2 --rank 16 --epsilon 8 --delta 1e-5
    """
    classifier = import_extra("privproj.training.classifier", "`privproj train`", "torch")
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if output == "":
        raise InvalidParameterError("--output", "nothing", "a folder", "name a new folder for the model and its ledger")
    if resume is not None:
        if chosen or output:
            name = next(iter(chosen), "output")
            raise InvalidParameterError("--resume", resume, f"the only option, without --{name.replace('_', '-')}")
        folder = Path(resume)
        settings = classifier.saved_settings(folder)
        processes = classifier.join(settings)
    else:
        settings = Settings(**{"data": None, "mechanism": None, **chosen})
        processes = classifier.join(settings)
        folder = processes.agree(free_folder() if output is None else Path(output))
        with processes.together():
            if processes.first:
                classifier.begin_run(settings, folder)
    try:
        training = classifier.ClassifierTraining(settings, folder)
    except BaseException as error:
        if resume is None and processes.first:
            classifier.remove_unused_folder(folder)
        if isinstance(error, InvalidParameterError) and error.name == "rank" and error.is_missing:
            raise InvalidParameterError(
                "rank", "nothing", error.expected
            ) from None  # Method is not on the command line
        raise
    try:
        with bar(training.total, "training", hidden=not processes.first) as step:
            report = training.train(step)
    except KeyboardInterrupt:
        return complain(f"interrupted. Run `privproj train --resume {folder}` to continue.", 130)
    return print_report(report, json) if processes.first else 0


def free_folder() -> Path:
    """Return the first of privproj-train, privproj-train-2, ... that does not exist."""
    number = 1
    while (folder := Path("privproj-train" if number == 1 else f"privproj-train-{number}")).exists():
        number += 1
    return folder


def print_report(outcome: dict[str, Any], json: bool) -> int:
    """Write and print the report of a training run, and return the exit code.

    ``outcome`` is the report of :meth:`privproj.training.classifier.ClassifierTraining.train`.
    """
    result, account, paths = outcome["result"], outcome.pop("account"), outcome["paths"]
    record = {
        "test_accuracy": outcome["test_accuracy"],
        **{
            key: result.as_dict()[key]
            for key in ("epsilon", "delta", "bound", "status", "data_assumptions", "warnings")
        },
        "relation": str(result.run["relation"]),
        **outcome,
    }
    documents = plugin_table("TRAIN_DOCUMENTS")
    paths |= {name: str(Path(paths["report"]).with_name(file)) for name, (file, _) in documents.items()}
    write_text(paths["report"], render.as_json(record) + "\n")
    for _, write_document in documents.values():
        load(write_document)(account, result.delta, paths)
    click.echo(render.as_json(record) if json else text(record))
    return EXIT_CODES[result.outcome]


def text(record: dict[str, Any]) -> str:
    """Return the report of a training run as text."""
    result, clips = record["result"], record.get("adaptive_clipping")
    first = f"test accuracy = {100.0 * record['test_accuracy']:.1f} %  (on held-out records, which are not protected)"
    multiplier, deviation = (round_outward(record[name]) for name in ("noise_multiplier", "noise_std"))
    parts = {
        "noise": f"multiplier {multiplier}, standard deviation {deviation} (on the sum of clipped gradients)",
        "clip": CLIPS.format(**clips) if clips else "",
        "trained": f"{record['steps']} steps in {record['seconds']:.1f} s on {record['device']}",
        "wrote": ", ".join(record["paths"].values()),
    }
    return f"{first}\n{render.answer_text(result, parts)}"


# lines on adaptive clipping
CLIPS = (
    "{first_clip:.4g} at the first step, {last_clip:.4g} at the last (adaptive clipping). The noise above is that of "
    "the first step. epsilon includes the noisy count of unclipped records, with noise of standard deviation {sigma:g}."
)


COMMANDS = {"train": command}
