"""``privproj train``: calibrate, train a linear head or a small network privately, report what was spent."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from privproj.errors import InvalidParameter
from privproj.lazy import import_extra
from privproj.mechanisms import Gaussian
from privproj.records.atomic import digest_of
from privproj.records.data_file import write_text
from privproj.records.statement import DIGESTS, account_data, statement_from
from privproj.result import round_outward
from privproj.runs import RUN_PARAMETERS
from privproj.training.algorithms import ALGORITHMS
from privproj.validation import parameters_of

from . import render
from .answer import EXIT_CODES
from .options import Once, OneOf, command_with, json_option, option, option_of
from .output import bar, complain
from .report import as_markdown


@command_with(
    "train",
    option("--data", "digits, or an .npz file with arrays x and y.", type=str, metavar="DATA"),
    option("--mechanism", "What is released each step.", type=OneOf(ALGORITHMS)),
    option("--rank", "Rank of the projection or the adapters, dimension of dp-sft's subspace.", metavar="R"),
    option("--epsilon", "Target epsilon.", metavar="E"),
    option("--delta", "Target delta.  [default: 1e-5]", metavar="D"),
    option("--noise-multiplier", "z, instead of a target epsilon.", metavar="Z"),
    option("--clip", "Clipping norm of a record's gradient.  [default: 1]", metavar="C"),
    option_of("adaptive_clipping_sigma", parameters_of(Gaussian)["adaptive_clipping_sigma"]),
    option("--batch-size", "Expected batch size.  [default: 256]", metavar="B"),
    *(option_of(name, RUN_PARAMETERS[name]) for name in ("sampling", "batches", "max_batch_size")),
    option("--epochs", "Passes over the data.  [default: 50]", metavar="E"),
    option("--steps", "Steps, instead of passes.", metavar="T"),
    option("--learning-rate", "Learning rate.", metavar="LR"),
    option("--hidden", "Units of a hidden layer.  [default: none, a linear head]", metavar="H"),
    option("--frame", "Projection of m2.", type=OneOf(["haar", "wishart"])),
    option("--clipping", "One clip for all layers, or one each.", type=OneOf(["joint", "per-layer"])),
    option("--every", "Steps that a re-sampled factor serves.  [default: 1]", metavar="T"),
    option("--bound", "Bound that accounts the run.", type=str, metavar="NAME"),
    option("--device", "cpu, cuda, ...  [default: cuda where there is one]", type=str, metavar="DEVICE"),
    option("--checkpoint-every", "Steps between checkpoints.  [default: 25]", metavar="T"),
    option("--insecure-seed", "Make the run repeatable, and worthless as protection.", metavar="SEED"),
    Once(["--output", "-o"], help="Folder of the run.  [default: privproj-train, numbered]", metavar="DIR"),
    option("--resume", "Go on with the run in this folder.", type=str, metavar="DIR"),
    json_option(),
)
def command(output: str | None, resume: str | None, json: bool, **given: Any) -> int:
    """Train on features with the noise that a target needs, and report epsilon with what it rests on.

    A folder holds the ledger (every release, recorded before it is used), the checkpoint and the report. A run that was
    stopped goes on with --resume DIR, its count of releases and all.

    \b
    Example:
      privproj train --data digits --mechanism m2 --rank 16 --epsilon 8 --delta 1e-5
    """
    classifier = import_extra("privproj.training.classifier", "`privproj train`", "torch")
    if output == "":
        raise InvalidParameter("--output", "nothing", "a folder")
    if resume is not None:
        extra = {name: value for name, value in given.items() if value is not None}
        if extra or output:
            name = next(iter(extra), "output")
            raise InvalidParameter("--resume", resume, f"no other option with it, such as --{name.replace('_', '-')}")
        folder = Path(resume)
        settings = classifier.saved_settings(folder)
        processes = classifier.join(settings)
    else:
        settings = settings_from(classifier, given)
        processes = classifier.join(settings)
        folder = processes.agree(free_folder() if output is None else Path(output))
        with processes.together():
            if processes.first:
                classifier.begin_run(settings, folder)
    try:
        training = classifier.ClassifierTraining.start(settings, folder)
    except BaseException:
        if resume is None and processes.first:
            classifier.remove_unused_folder(folder)
        raise
    try:
        with bar(training.total, "training", hidden=not processes.first) as step:
            report = training.train(step)
    except KeyboardInterrupt:
        return complain(f"interrupted; privproj train --resume {folder} goes on with the run", 130)
    return print_report(report, json) if processes.first else 0


def settings_from(classifier: Any, given: dict[str, Any]) -> Any:
    """Return the options as settings, with defaults where they are not given."""
    known = {field.name for field in fields(classifier.Settings)}
    chosen = {name: value for name, value in given.items() if name in known and value is not None}
    for name in ("data", "mechanism"):
        if name not in chosen:
            raise InvalidParameter(f"--{name}", "nothing", "--data and --mechanism, or --resume")
    if "epsilon" not in chosen and "noise_multiplier" not in chosen:
        raise InvalidParameter("--epsilon", "nothing", "either --epsilon or --noise-multiplier")
    return classifier.Settings(**chosen)


def free_folder() -> Path:
    """Return the first of privproj-train, privproj-train-2, ... that does not exist."""
    number = 1
    while (folder := Path("privproj-train" if number == 1 else f"privproj-train-{number}")).exists():
        number += 1
    return folder


def print_report(outcome: Any, json: bool) -> int:
    """Write the report and print it; returns the exit code."""
    result = outcome.epsilon
    plain, paths = result.as_dict(), outcome.paths
    shown = {
        "test_accuracy": outcome.test_accuracy,
        **{key: plain[key] for key in ("epsilon", "delta", "bound", "status", "promises", "warnings")},
        "relation": str(result.run["relation"]),
        **{key: getattr(outcome, key) for key in ("noise_multiplier", "noise_std", "steps", "device", "seconds")},
        **({"adaptive_clipping": outcome.clips} if outcome.clips else {}),
        "paths": paths | {"statement": str(Path(paths["report"]).with_name("statement.md"))},
        "result": result,
    }
    write_text(shown["paths"]["report"], render.as_json(shown) + "\n")
    digests = {name: digest_of(outcome.paths[name]) for name in DIGESTS}
    statement = statement_from(account_data(outcome.account), result.delta, "markdown", said=digests)
    write_text(shown["paths"]["statement"], as_markdown(statement) + "\n")
    click.echo(render.as_json(shown) if json else text(outcome, shown))
    return EXIT_CODES[result.outcome]


def text(outcome: Any, shown: dict[str, Any]) -> str:
    """Say accuracy, epsilon with what it rests on, noise, and the files written."""
    result = outcome.epsilon
    first = f"test accuracy = {100.0 * outcome.test_accuracy:.1f} %  (records kept from training, not protected)"
    multiplier, deviation = map(round_outward, (outcome.noise_multiplier, outcome.noise_std))
    parts = {
        "noise": f"multiplier {multiplier}, standard deviation {deviation} on the sum of clipped gradients",
        "clip": clip_words(outcome.clips) if outcome.clips else "",
        "trained": f"{outcome.steps} steps in {outcome.seconds:.1f} s on {outcome.device}",
    }
    wrote = render.fit_line("  wrote:    ", ", ".join(shown["paths"].values()))
    lines = [first, *render.result_lines(result), *render.labelled(parts), *wrote]
    return "\n".join(lines + render.labelled(render.closing(result)))


def clip_words(clips: dict[str, float]) -> str:
    """Say what became of a clip that adapts."""
    first, last = f"{clips['first_clip']:.4g}", f"{clips['last_clip']:.4g}"
    return (
        f"{first} at first, to which that standard deviation belongs, and {last} at last: it follows a count of "
        f"unclipped records with noise of deviation {clips['sigma']:g}, which epsilon includes"
    )


COMMANDS = {"train": command}
