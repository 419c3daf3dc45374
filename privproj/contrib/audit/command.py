"""Implement ``privproj audit``: attacks that can refute a claimed epsilon.

No attack can confirm a claim. The parameters of each audit function are the options of its command.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from privproj_cli import render
from privproj_cli.options import PATH, WORKERS, Group, Number, OneOf, json_option, options_from
from privproj_cli.output import bar

from privproj.contrib.audit.faults import FAULTS, LOADER_FAULTS
from privproj.errors import InvalidParameterError
from privproj.io.jobs import open_pool, rows_in_order
from privproj.lazy import import_extra
from privproj.mechanisms import M2, Gaussian
from privproj.parameters import number, probability, whole_number
from privproj.result import round_outward
from privproj.run import percent
from privproj.training.algorithms import MEMBERSHIP_ALGORITHMS
from privproj.training.algorithms import load as load_algorithm

if TYPE_CHECKING:
    from privproj.contrib.audit import AuditVerdict

command = Group("audit", help="Attack an implementation to refute a claimed epsilon. No audit can confirm an epsilon.")

Count = Annotated[int, Number(whole_number("an integer >= 1").check)]
Small = Annotated[int, Number(whole_number("an integer from 1 to 10000", 1, 10**4).check)]
Trials = Annotated[int, Number(whole_number("an integer from 8 to 1e+07", 8, 10**7).check)]
Workers = Annotated[int, WORKERS]
Seed = Annotated[int | None, Number(whole_number("an integer from 0 to 1e+09", 0, 10**9).check)]
Share = Annotated[float, Number(probability)]
Claim = Annotated[float | None, Number(number("a number from 0 to 1e+09", 0.0, 1e9).check)]
Fault = Annotated[str | None, OneOf(FAULTS)]
LoaderFault = Annotated[str | None, OneOf(LOADER_FAULTS)]
Algorithm = Annotated[str, OneOf(MEMBERSHIP_ALGORITHMS)]

# the output of an audit: its JSON record, the first line of its text, and further lines by label
Finding = tuple[dict[str, Any], str, dict[str, Any]]


def needing_torch(name: str) -> Any:
    """Import an audit module that needs torch, and return it."""
    return import_extra(f"privproj.contrib.audit.{name}", "this audit", "torch")


def finding_from(verdict: "AuditVerdict", trials: str = "runs", **more: Any) -> Finding:
    """Return the JSON record and the printed text for the verdict of an audit.

    ``trials`` is a plural noun for the trials in the text. ``more`` has further fields of the JSON record.
    """
    claim = verdict.claimed_epsilon
    claim_text = "no claim" if claim is None else f"claimed epsilon {claim:.4g} at delta {verdict.delta:g}"
    refuted_elsewhere = verdict.profile_refuted and verdict.epsilon_lower <= (claim or 0.0)
    too_few_trials = claim is not None and verdict.ceiling < claim and not verdict.refuted
    least, most = round_outward(verdict.epsilon_lower, up=False), round_outward(verdict.ceiling)
    parts = {
        "lower bound": f"epsilon >= {least} with {percent(verdict.confidence)} confidence",
        "detectable": f"claims below epsilon {most} only ({verdict.trials} {trials}); an audit never confirms a claim",
        "attack": auc_text(verdict.auc),
        "warning": f"too few {trials} to refute this claim at this delta with any attack. Use more {trials}."
        * too_few_trials,
    }
    elsewhere = ""
    if refuted_elsewhere:
        elsewhere = "; the claimed privacy profile fails at another epsilon"
        if verdict.contradiction:
            at, claimed, measured = verdict.contradiction
            attained, limit = round_outward(measured, up=False), round_outward(claimed)
            text = f"the attack shows delta >= {attained} at epsilon {at:g}; the claim is delta <= {limit}"
            parts = {"contradiction": text, **parts}
    first = f"{verdict.verdict}: {claim_text}{elsewhere}"
    record = asdict(verdict)
    del record["contradiction"]
    return {**record, "verdict": verdict.verdict, **more}, first, parts


def auc_text(area: float) -> str:
    """Return the AUC of an attack as text, with the meaning of the values 0.5 and 1."""
    return f"AUC {area:.3f} (0.5: random guessing, 1: no error)"


def unbounded(separates: bool, area: float, trials: int, **more: Any) -> dict[str, Any]:
    """Return the JSON record of an audit that gives no bound on epsilon.

    ``separates`` states whether the attack succeeded, and ``area`` is the AUC of the attack.
    """
    nothing = dict.fromkeys(("epsilon_lower", "claimed_epsilon", "confidence", "ceiling"))
    verdict = "separates" if separates else "does not separate"
    return {**nothing, "auc": area, "verdict": verdict, "trials": trials, **more}


def symmetry(dim: Small = 64, columns: Small = 8, rank: Count = 16, draws: Count = 200, claim: Claim = None) -> Finding:
    """Distinguish two query matrices by the symmetry of the Wishart matrix.

    Args:
        dim: Rows of the query.
        columns: Columns of the query.
        rank: Degrees of freedom of the Wishart matrix.
        draws: Number of releases.
        claim: Claimed epsilon.
    """
    import numpy as np

    from privproj.contrib.audit.symmetry import symmetry_test

    rng = np.random.default_rng()
    query = rng.standard_normal((dim, columns))
    other = query.copy()
    other[0, 0] += 1.0
    test = symmetry_test(query, other, rank, draws, rng)
    record = unbounded(test.separates, test.auc, test.draws, claimed_epsilon=claim)
    text = "the attack distinguishes neighboring matrices in every release" if test.separates else "no conclusion"
    return record, f"{record['verdict']}: {text}", {"attack": f"{auc_text(test.auc)}, over {test.draws} releases"}


# --- the release itself -----------------------------------------------------------------------------


def mechanism(
    mechanism: str, noise_multiplier: float, dim: float | None = None, rank: float | None = None, steps: Count = 20,
    delta: Share = 1e-3, claim: Claim = None, fault: Fault = None, confidence: Share = 0.999, trials: Trials = 4000,
    workers: Workers = 2, seed: Seed = None,
) -> Finding:  # fmt: skip
    """Pass a canary gradient through the release code.

    Args:
        mechanism: Mechanism to audit.
        noise_multiplier: z = noise standard deviation / sensitivity.
        dim: Dimension of the layer that is projected.
        rank: Rank.
        steps: Number of releases in a run.
        delta: Delta of the claim.
        claim: Claimed epsilon.  [default: computed by privproj]
        fault: Inject a bug that the audit should detect.
        confidence: Confidence of the lower bound.
        trials: Number of runs, half of them with the canary.
        workers: Number of processes.
        seed: Seed of the audit.
    """
    shape: Any = {"dim": dim, "rank": rank}
    for name, value in shape.items():
        if (value is None) is (mechanism == "m2"):
            rejected = "nothing" if value is None else value
            raise InvalidParameterError(f"--{name}", rejected, "given for m2, and for no other mechanism")
    z: Any = {"noise_multiplier": noise_multiplier}
    claimed = M2(**shape, **z) if mechanism == "m2" else Gaussian(**z)
    release = needing_torch("experiments")
    experiment, runs = release.AuditExperiment(mechanism=claimed, steps=steps, fault=fault, seed=seed), trials // 2
    parts = max(1, min(50, runs // 20))
    sizes = [runs // parts + (i < runs % parts) for i in range(parts)]
    scores: Any = ([], [])
    with bar(parts, "auditing") as step:
        for lines in rows_in_order(partial(score_parts, experiment, sizes), range(parts), partial(open_pool, workers)):
            for line in lines.splitlines():
                for arm, more in zip(scores, loads(line), strict=True):
                    arm.extend(more)
                step(1)
    return finding_from(release.assess_experiment(experiment, scores, delta, confidence, claim), fault=fault)


def score_parts(experiment: Any, sizes: list[int], numbers: range) -> str:
    """Score chunks of audit runs, and return one line of JSON for each chunk.

    Chunk ``i`` has ``sizes[i]`` runs with the canary and as many without it. ``numbers`` are the indices of the chunks
    to score.
    """
    import torch

    torch.set_num_threads(1)
    scores = (experiment.scores(sizes[i], sizes[i], i) for i in numbers)
    return "".join(dumps([arm.tolist() for arm in arms]) + "\n" for arms in scores)


def loader(
    noise_multiplier: float, batches: Count = 16, epochs: Count = 16, delta: Share = 1e-3, claim: Claim = None,
    fault: LoaderFault = None, confidence: Share = 0.999, trials: Trials = 2000, seed: Seed = None,
) -> Finding:  # fmt: skip
    """Put a canary into the batches of the balls-in-bins loader.

    Args:
        noise_multiplier: z = noise standard deviation / sensitivity.
        batches: Number of batches in an epoch.
        epochs: Number of epochs.
        delta: Delta of the claim.
        claim: Claimed epsilon.  [default: computed by privproj]
        fault: Inject a bug that the audit should detect.
        confidence: Confidence of the lower bound.
        trials: Number of runs, half of them with the canary.
        seed: Seed of the audit.
    """
    audit, z = needing_torch("experiments"), Gaussian(noise_multiplier=noise_multiplier)
    experiment = audit.LoaderExperiment(mechanism=z, batches=batches, epochs=epochs, fault=fault, seed=seed)
    verdict = audit.assess_experiment(experiment, experiment.scores(trials // 2, trials // 2), delta, confidence, claim)
    return finding_from(verdict, fault=fault)


def one_run(
    noise_multiplier: float, canaries: Count = 1000, guesses: Count = 200, delta: Share = 1e-3, claim: Claim = None,
    confidence: Share = 0.95, seed: Seed = None,
) -> Finding:  # fmt: skip
    """Audit one release with many canaries, each included with probability 1/2.

    Args:
        noise_multiplier: z = noise standard deviation / sensitivity.
        canaries: Number of orthogonal canary gradients.
        guesses: Number of guesses.
        delta: Delta of the claim.
        claim: Claimed epsilon.  [default: computed by privproj]
        confidence: Confidence of the lower bound.
        seed: Seed of the audit.
    """
    z = Gaussian(noise_multiplier=noise_multiplier)
    verdict, right = needing_torch("experiments").one_run(z, canaries, guesses, delta, confidence, claim, seed)
    record, first, parts = finding_from(verdict, "guesses")
    hits = f"{right} of {verdict.trials} guesses correct ({percent(right / verdict.trials)})"
    return record, first, {**parts, "attack": f"{hits}, {parts['attack']}, in one run"}


# --- trained models -----------------------------------------------------------------------------------


def membership(
    noise_multiplier: float, mechanism: Algorithm = "m2", rank: float = 16,
    attack: Literal["poison", "calibrated"] = "poison", models: Trials = 200, records: float = 200,
    steps: float = 30, clip: float = 4.0, delta: Share = 1e-3, claim: Claim = None, confidence: Share = 0.95,
    journal: Annotated[str | None, PATH] = None, workers: Workers = 2, seed: Seed = None,
) -> Finding:  # fmt: skip
    """Attack trained models by membership inference.

    The attack ``poison`` trains shadow models with and without a canary record, and tests the claim. The attack
    ``calibrated`` scores records by the loss of one trained model minus that of a reference model. It gives no bound on
    epsilon.

    Args:
        noise_multiplier: z = noise standard deviation / sensitivity.
        mechanism: Training algorithm.
        rank: Rank, where the algorithm has one.
        attack: poison: train shadow models with and without a canary. calibrated: score records by their loss.
        models: Number of shadow models, half of them with the canary.
        records: Number of training records.
        steps: Number of steps.
        clip: Clipping norm.
        delta: Delta of the claim.
        claim: Claimed epsilon.  [default: computed by privproj]
        confidence: Confidence of the lower bound.
        journal: File that stores the scores, to resume an interrupted audit.
        workers: Number of processes.
        seed: Seed of the audit.
    """
    module, has_rank = needing_torch("membership"), load_algorithm(mechanism).rank != "none"
    shape = {"rank": rank if has_rank else None, "records": records, "steps": steps, "clip": clip, "seed": seed}
    game = module.Game(mechanism=mechanism, noise_multiplier=noise_multiplier, **shape)
    if attack == "calibrated":
        area, rates, beyond = module.calibrated_loss_attack(game, confidence)
        first = f"AUC {area:.3f}  (average over records; a value near 0.5 is not evidence of privacy)"
        record = unbounded(beyond, area, 1, rates=rates, confidence=confidence)
        return record, first, {"rate": [rate_text(rate, confidence) for rate in rates]}
    half = models // 2
    with bar(2 * half, "training shadow models") as step:
        scores = module.poisoned(game, half, workers, None if journal is None else Path(journal), step)
    from privproj.contrib.audit.epsilon_lower import assess_claim, balanced_accuracy

    best, claimed = balanced_accuracy(*scores), game.claim(delta) if claim is None else claim
    verdict = assess_claim(*scores, delta=delta, confidence=confidence, claim=claimed)
    record, first, parts = finding_from(verdict, balanced_accuracy=best)
    return (
        record,
        first,
        {
            **parts,
            "accuracy": f"{percent(best)} balanced, at the best threshold for these runs (50 %: random guessing)",
        },
    )


def rate_text(rate: dict[str, float], confidence: float) -> str:
    """Return a true positive rate with its confidence interval, as text."""
    at, share, low, high, sure = map(percent, (*rate.values(), confidence))
    return f"true positive rate {share} at a false positive rate of {at} ({low} to {high} with {sure} confidence)"


def add(audit: Callable[..., Finding], *arguments: click.Argument) -> None:
    """Add an audit function as a command, whose exit code is 1 if a claim is refuted.

    ``arguments`` are the positional arguments of the command. All other parameters of the function are options.
    """

    def run(json: bool, **parameters: Any) -> int:
        began = time.monotonic()
        record, first, parts = audit(**{name: value for name, value in parameters.items() if value is not None})
        seconds = time.monotonic() - began
        text = "\n".join([first, *render.label_lines({**parts, "time": f"{seconds:.1f} s"})])
        click.echo(render.as_json({**record, "seconds": seconds}) if json else text)
        refuted = {"refuted": True, "separates": record["claimed_epsilon"] is not None}
        return int(refuted.get(record["verdict"], False))

    options = [one for one in options_from(audit) if one.name not in [argument.name for argument in arguments]]
    name, (help_text, *_) = audit.__name__.replace("_", "-"), (audit.__doc__ or "").split("\n\n")
    command.command(name, params=[*arguments, *options, json_option()], help=help_text, short_help=help_text)(run)


add(symmetry)
add(mechanism, click.Argument(["mechanism"], type=OneOf(["m2", "gaussian"])))
for other in (loader, one_run, membership):
    add(other)
