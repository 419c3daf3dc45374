"""``privproj audit``: attacks that can refute a claimed epsilon; none of them can confirm one."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privproj.audit.faults import FAULTS, LOADER_FAULTS
from privproj.errors import InvalidParameter
from privproj.lazy import import_extra
from privproj.mechanisms import M2, Gaussian
from privproj.records.sweep import open_pool, rows_in_order
from privproj.training.algorithms import MEMBERSHIP_ALGORITHMS
from privproj.training.algorithms import load as load_algorithm
from privproj.validation import privacy_epsilon, probability

from . import render
from .options import Group, Number, Once, OneOf, count, json_option, option
from .output import bar

if TYPE_CHECKING:
    from privproj.audit import AuditVerdict

command = Group("audit", help="Attacks that can refute a claimed epsilon; none can confirm one.")


def needing_torch(name: str) -> Any:
    """Import an audit that runs the training code; where torch is not installed one sentence says what to install."""
    return import_extra(f"privproj.audit.{name}", "this audit", "torch")


Found = tuple[dict[str, Any], list[str], bool]
"""What an audit found: its record, the lines that say it, and whether a claim is refuted."""


def judged(verdict: "AuditVerdict", trials: str = "runs", **more: Any) -> Found:
    """A verdict, with what there is to say besides."""
    return {**asdict(verdict), "verdict": verdict.verdict, **more}, lines_of(verdict, trials), verdict.refuted


def lines_of(found: "AuditVerdict", trials: str = "runs") -> list[str]:
    """Say a verdict in words: the claim, what was shown, and the most that could have been shown."""
    claim = found.claimed_epsilon
    named = "nothing was claimed" if claim is None else f"claimed epsilon {claim:.4g} at delta {found.delta:g}"
    elsewhere = found.profile_refuted and found.epsilon_lower <= (claim or 0.0)
    weak = claim is not None and found.ceiling < claim and not found.refuted
    note = f"  note:     too few {trials} to refute this claim at this delta, whatever the attack: take more"
    return [
        f"{found.verdict}{' (at another epsilon of the claimed profile)' * elsewhere}: {named}",
        f"  shown:    epsilon at least {found.epsilon_lower:.4g} with {render.percent(found.confidence)} confidence",
        f"  ceiling:  {found.ceiling:.4g} is the most that {found.trials} {trials} can show; an audit never confirms",
        f"  attack:   {auc_words(found.auc)}",
        *([note] if weak else []),
    ]


def auc_words(area: float) -> str:
    """Say the area under the curve of an attack, with its scale."""
    return f"AUC {area:.3f} (0.5 is guessing, 1 is always right)"


# --- symmetry -----------------------------------------------------------------------------------------


def symmetry(dim: int, columns: int, rank: int, draws: int, claim: float | None) -> Found:
    """A matrix times a Wishart matrix gives itself away."""
    import numpy as np

    from privproj.audit.symmetry import symmetry_test

    rng = np.random.default_rng()
    query = rng.standard_normal((dim, columns))
    other = query.copy()
    other[0, 0] += 1.0
    test = symmetry_test(query, other, rank, draws, rng)
    verdict = word_of(test.separates)
    found = {**NOTHING, "auc": test.auc, "claimed_epsilon": claim, "verdict": verdict, "trials": test.draws}
    words = "every release told neighbouring matrices apart" if test.separates else "nothing can be concluded"
    attack = f"  attack:   {auc_words(test.auc)}, over {test.draws} releases"
    return found, [f"{verdict}: {words}", attack], test.separates and claim is not None


NOTHING = dict.fromkeys(("epsilon_lower", "claimed_epsilon", "confidence", "ceiling"))
"""What an audit without a bound on epsilon has not."""


def word_of(separates: bool) -> str:
    """The verdict of such an audit."""
    return "separates" if separates else "does not separate"


# --- the release itself -----------------------------------------------------------------------------


def mechanism(trials: int, workers: int, delta: float, confidence: float, **given: Any) -> Found:
    """A canary gradient through the real release code."""
    release, own = needing_torch("scenes"), {name: given[name] for name in ("steps", "fault", "seed")}
    scene = release.Scene(mechanism=mechanism_of(given), **own)
    runs = trials // 2
    parts = max(1, min(50, runs // 20))
    sizes = [runs // parts + (i < runs % parts) for i in range(parts)]
    scores: Any = ([], [])
    with bar(parts, "auditing") as step:
        for lines in rows_in_order(partial(score_parts, scene, sizes), range(parts), partial(open_pool, workers)):
            for line in lines.splitlines():
                for arm, more in zip(scores, loads(line), strict=True):
                    arm.extend(more)
                step(1)
    return judged(release.judge_scene(scene, scores, delta, confidence, given["claim"]), fault=given["fault"])


def score_parts(scene: Any, sizes: list[int], numbers: range) -> str:
    """Score the parts of these numbers, each of so many runs: a line of JSON for each."""
    import torch

    torch.set_num_threads(1)
    scores = (scene.scores(sizes[i], sizes[i], i) for i in numbers)
    return "".join(dumps([arm.tolist() for arm in arms]) + "\n" for arms in scores)


def mechanism_of(given: dict[str, Any]) -> M2 | Gaussian:
    """Return the mechanism that is audited."""
    z, dim, rank = (given[name] for name in ("noise_multiplier", "dim", "rank"))
    if given["mechanism"] == "gaussian":
        return Gaussian(noise_multiplier=z)
    if dim is None or rank is None:
        raise InvalidParameter("--dim", "nothing" if dim is None else dim, "--dim and --rank for m2")
    return M2(dim=dim, rank=rank, noise_multiplier=z)


def loader(trials: int, delta: float, confidence: float, claim: float | None, **given: Any) -> Found:
    """A canary in the batches of the real balls-in-bins loader."""
    audit, z = needing_torch("scenes"), Gaussian(noise_multiplier=given.pop("noise_multiplier"))
    scene = audit.LoaderScene(mechanism=z, **given)
    verdict = audit.judge_loader(scene, scene.scores(trials // 2, trials // 2), delta, confidence, claim)
    return judged(verdict, fault=given["fault"])


def one_run(noise_multiplier: float, **given: Any) -> Found:
    """Many canaries in one release."""
    verdict, right = needing_torch("scenes").one_run(Gaussian(noise_multiplier=noise_multiplier), **given)
    found, lines, refuted = judged(verdict, "guesses")
    hits = f"{right} of {verdict.trials} guesses right ({render.percent(right / verdict.trials)})"
    return found, [*lines[:3], f"  attack:   {hits}, {auc_words(verdict.auc)}, in one run"], refuted


# --- trained models -----------------------------------------------------------------------------------


def membership(
    attack: str, models: int, workers: int, journal: str | None, delta: float, confidence: float,
    claim: float | None, **given: Any,
) -> Found:  # fmt: skip
    """Shadow models with and without a canary record, or a calibrated-loss attack."""
    module = needing_torch("membership")
    chosen = {name: value for name, value in given.items() if value is not None}
    if load_algorithm(given["mechanism"]).rank == "none":
        chosen["rank"] = None
    game = module.Game(**chosen)
    if attack == "calibrated":
        area, rates, beyond = module.calibrated_loss_attack(game, confidence)
        found = {"auc": area, "verdict": word_of(beyond), "rates": rates, "confidence": confidence, "trials": 1}
        lines = [f"AUC {area:.3f} (an average over records: near 0.5 it is no evidence of privacy)"]
        return {**NOTHING, **found}, lines + [rate_line(rate, confidence) for rate in rates], False
    half = models // 2
    with bar(2 * half, "training shadow models") as step:
        scores = module.poisoned(game, half, workers, None if journal is None else Path(journal), step)
    from privproj.audit.epsilon_lower import balanced_accuracy, judge

    best, own = balanced_accuracy(*scores), game.claim(delta) if claim is None else claim
    found, lines, refuted = judged(
        judge(*scores, delta=delta, confidence=confidence, claim=own), balanced_accuracy=best
    )
    words = f"  best:     {render.percent(best)} balanced accuracy (optimistic: 50 % is guessing)"
    return found, [*lines, words], refuted


def rate_line(rate: dict[str, float], confidence: float) -> str:
    """Say the true positive rate at a false positive rate, with its interval."""
    at, share, low, high, sure = map(render.percent, (*rate.values(), confidence))
    return f"  true positive rate {share} at a false positive rate of {at} ({low} to {high} with {sure} confidence)"


def level(value: float) -> Once:
    """Return the option for the confidence of the lower bound."""
    words = f"Confidence of the lower bound.  [default: {value:g}]"
    return option("--confidence", words, type=Number(probability), metavar="P", default=value)


DELTA = option("--delta", "Delta of the claim.  [default: 1e-3]", type=Number(probability), metavar="D", default=1e-3)
CLAIM = option("--claim", "Claimed epsilon.  [default: the tool's own]", metavar="EPS",
               type=Number(lambda name, value: privacy_epsilon(value, zero=True)))  # fmt: skip
SEED = count("--seed", "Make the audit repeatable.", "SEED", 0, 10**9)
WORKERS = count("--workers", "Processes.", "N", 1, 256, 2)
Z = option("--noise-multiplier", "z = noise standard deviation / sensitivity.", metavar="Z", required=True)


def add(audit: Callable[..., Found], options: list[click.Parameter]) -> None:
    """Add one audit to the command; its exit code is 1 if it refutes a claim."""

    def run(json: bool, **given: Any) -> int:
        began = time.monotonic()
        found, lines, refuted = audit(**given)
        seconds = time.monotonic() - began
        text = "\n".join([*lines, f"  took:     {seconds:.1f} s"])
        click.echo(render.as_json({**found, "seconds": seconds}) if json else text)
        return int(refuted)

    name = audit.__name__.replace("_", "-")
    command.command(name, params=[*options, json_option()], help=audit.__doc__)(run)


add(symmetry, [
    count("--dim", "Rows of the query.", "D", 1, 10**4, 64),
    count("--columns", "Columns of the query.", "M", 1, 1000, 8),
    count("--rank", "Degrees of freedom of the Wishart matrix.", "R", 1, 10**5, 16),
    count("--draws", "Releases.", "N", 1, 10**15, 200), CLAIM,
])  # fmt: skip
add(mechanism, [
    click.Argument(["mechanism"], type=OneOf(["m2", "gaussian"])),
    option("--dim", "Side of the layer that is projected.", metavar="D"), option("--rank", "Rank.", metavar="R"), Z,
    count("--steps", "Releases in a run.", "T", 1, 10**15, 20), DELTA, CLAIM,
    option("--fault", "Plant a fault, to see it found.", type=OneOf(FAULTS)), level(0.999),
    count("--trials", "Runs, half of them with the canary.", "N", 8, 10**7, 4000), WORKERS, SEED,
])  # fmt: skip
add(loader, [
    Z, count("--batches", "Batches of an epoch.", "T", 1, 10**15, 16),
    count("--epochs", "Epochs of a run.", "E", 1, 10**15, 16), DELTA, CLAIM,
    option("--fault", "Plant a fault, to see it found.", type=OneOf(LOADER_FAULTS)), level(0.999),
    count("--trials", "Runs, half of them with the canary.", "N", 8, 10**7, 2000), SEED,
])  # fmt: skip
add(one_run, [
    Z, option("--canaries", "Orthogonal canary gradients.  [default: 1000]", metavar="M", default=1000.0),
    option("--guesses", "Guesses.  [default: 200]", metavar="G", default=200.0), DELTA, CLAIM, level(0.95), SEED,
])  # fmt: skip
add(membership, [
    option("--mechanism", "Training algorithm.  [default: m2]", default="m2", type=OneOf(MEMBERSHIP_ALGORITHMS)),
    count("--rank", "Rank.  [default: 16]", "R", 0, 10**9), Z,
    option("--attack", "Which attack.  [default: poison]", type=OneOf(["poison", "calibrated"]), default="poison"),
    count("--models", "Shadow models, half with the canary.", "N", 8, 10**6, 200),
    option("--records", "Training records.  [default: 200]", metavar="N"),
    option("--steps", "Steps.  [default: 30]", metavar="T"), option("--clip", "Clip.  [default: 4]", metavar="C"),
    DELTA, CLAIM, level(0.95), Once(["--journal"], help="Keep scores here, and go on from them.", metavar="FILE"),
    WORKERS, SEED,
])  # fmt: skip


COMMANDS = {"audit": command}
