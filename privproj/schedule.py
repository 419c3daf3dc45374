"""A run as data: phases, each a mechanism released some number of times, composed jointly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from privproj import calibration
from privproj.accountant import Question, any_projection, composed, numerics_of, probability_ends, question_of
from privproj.assumptions import PLAN_FIXED_IN_ADVANCE, PUBLIC_SUBSPACE
from privproj.bounds import find, mechanism_named
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import Gaussian, Layer, Mechanism, NoisyMechanism, privacy_epsilon, probability
from privproj.numerics import crossing, largest_integer
from privproj.profile import Curve, PrivacyProfile
from privproj.result import Outcome, Result, Side, Status
from privproj.runs import Run, RunOptions, from_batches

RUN_KEYS = ("steps", "sampling_rate", "sampling", "relation", "group_size", "discretization", "split", "public_size")
BATCH_KEYS = ("batch_size", "dataset_size", "epochs")
OTHER_KEYS = ("name", "mechanism", "bound", "planned")
ALIASES = {"dp-sgd": "gaussian", "prism": "gaussian", "dp-lora-fa": "gaussian"}
"""Algorithms that are a (subsampled) Gaussian mechanism, whatever their ranks: nothing of them improves epsilon."""

MOST_STEPS = 10**8


@dataclass(frozen=True)
class Phase:
    """One phase: what is released how often, by which bound it is accounted; ``planned`` ones have not happened yet."""

    question: Question
    name: str
    planned: bool = False

    @property
    def release(self) -> tuple[PrivacyProfile, Any]:
        """The profile of one release and the run; raises :class:`Refused` for a bound without a profile."""
        form, run = self.question.release()
        if not isinstance(form, PrivacyProfile):
            raise Refused(
                f"phase {self.name}: {self.question.bound.name} has no privacy profile, which joint composition needs; "
                "privproj bounds lists those that have one"
            )
        if run.sampling_rate < 1.0 and not form.amplifies:
            raise Refused(f"phase {self.name}: {self.question.bound.name} has no amplification by subsampling")
        return form, run

    def as_dict(self) -> dict[str, object]:
        """The phase as an entry of a run file."""
        mechanism, run = self.question.mechanism, self.question.run.parameters()
        given = {"layer" if k == "layers" else k: v for k, v in mechanism.parameters().items()}
        shown: dict[str, object] = {
            "name": self.name,
            "mechanism": mechanism.name,
            **given,
            "bound": self.question.bound.name,
        }
        shown |= {key: value for key, value in run.items() if value is not None and (key, value) != ("group_size", 1)}
        shown |= {"public_size": True} if self.question.run.public_size else {}
        return shown | ({"planned": True} if self.planned else {})


@dataclass(frozen=True)
class Schedule:
    """Phases under one neighbouring relation. Every number is a joint one: nothing is added up that can be composed."""

    phases: tuple[Phase, ...]
    discretization: float | None = None
    composer: str = "privproj"
    assumes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.phases:
            raise InvalidParameter("phase", "nothing", "at least one phase")
        Run(discretization=self.discretization, composer=self.composer)
        relations = {str(phase.question.run.relation) for phase in self.phases}
        if len(relations) > 1:
            raise InvalidParameter("relation", ", ".join(sorted(relations)), "one neighbouring relation for all phases")
        for phase in self.phases:
            if len(self.phases) > 1 and phase.question.reuses_projection:
                raise Refused(
                    f"phase {phase.name}: {phase.question.bound.name} needs a fresh projection for each release, and a "
                    f"fixed one may have served other phases; {any_projection(phase.question.mechanism)}"
                )

    @property
    def done(self) -> "Schedule":
        """The phases that are not merely planned."""
        return replace(self, phases=tuple(phase for phase in self.phases if not phase.planned))

    def curve(self) -> Curve:
        """The joint curve: of one phase as its bound has it, of several on one grid."""
        if len(self.phases) == 1:
            profile, run = self.phases[0].release
            return composed(profile, replace(run, discretization=self.discretization, composer=self.composer))
        from privproj import pld

        return pld.composed_phases([phase.release for phase in self.phases], self.discretization, self.composer)

    def epsilon(self, *, delta: float) -> Result:
        """The smallest epsilon of the whole run at ``delta``, rounded up."""
        target = probability("delta", delta)
        curve = self.curve()
        found = curve.epsilon(math.log(target))
        lower = found.lower if math.isfinite(found.lower) and found.lower >= 0.0 else None
        found_fields = {"epsilon": found.upper, "delta": target, "log10_delta": math.log10(target)}
        outcome = Outcome.VACUOUS if found.upper == math.inf else Outcome.OK
        return self.result("epsilon", found.upper, lower, numerics=numerics_of(curve), outcome=outcome, **found_fields)

    def delta(self, *, epsilon: float) -> Result:
        """The smallest delta of the whole run at ``epsilon``, rounded up."""
        target = privacy_epsilon(epsilon, zero=True)
        curve = self.curve()
        found = curve.log_delta(target)
        value, lower = probability_ends(found)
        found_fields = {"epsilon": target, "delta": value, "log10_delta": found.upper / math.log(10.0)}
        outcome = Outcome.VACUOUS if value >= 1.0 else Outcome.OK
        return self.result("delta", value, lower, numerics=numerics_of(curve), outcome=outcome, **found_fields)

    def result(self, quantity: str, value: float | None, lower: float | None, **details: Any) -> Result:
        """A result that names every phase; its status is the weakest of theirs."""
        questions = [phase.question for phase in self.phases]
        statuses = {question.status for question in questions}
        given: dict[str, Any] = {
            "quantity": quantity,
            "value": value,
            "lower": lower,
            "upper": value,
            "side": Side.UPPER,
            "mechanism": {
                "name": "run",
                "phases": [phase.as_dict() for phase in self.phases],
                "assumes": tuple(unique(a for q in questions for a in q.mechanism_assumes)),
            },
            "run": {**self.run(questions), "assumes": self.run_assumes(questions)},
            "bound": " + ".join(unique(f"{q.mechanism.name}.{q.bound.name}" for q in questions)),
            "bound_version": max(question.bound.version for question in questions),
            "status": Status.CONDITIONAL if Status.CONDITIONAL in statuses else Status.PROVED,
            "promises": tuple(unique(promise for question in questions for promise in question.promises)),
            "source": "; ".join(unique(question.bound.source for question in questions)),
            "outcome": Outcome.OK,
            "warnings": tuple(unique(note for question in questions for note in question.notes)),
        }
        return Result(**{**given, **details})

    @staticmethod
    def run(questions: list[Question]) -> dict[str, object]:
        """The run as plain values; phases may sample differently, so several have no rate in common."""
        shown = questions[0].run.parameters()
        if len(questions) > 1:
            shown |= {"sampling_rate": None, "sampling": None}
            shown |= {"steps": sum(question.run.steps for question in questions)}
            shown |= {"group_size": max(question.run.group_size for question in questions)}
        return shown

    def run_assumes(self, questions: list[Question]) -> tuple[str, ...]:
        """What the joint number takes for granted about the phases and their order."""
        planned = (PLAN_FIXED_IN_ADVANCE,) if len(questions) > 1 else ()
        return tuple(unique((*self.assumes, *(a for q in questions for a in q.run_assumes), *planned)))

    def scaled(self, factor: float) -> "Schedule":
        """The schedule with every noise multiplier times ``factor``."""
        return replace(self, phases=tuple(scaled_phase(phase, factor) for phase in self.phases))

    def calibrated(self, *, epsilon: float, delta: float) -> "Schedule":
        """The schedule whose noise multipliers, scaled by one common factor, just meet ``(epsilon, delta)``.

        Raises :class:`Refused` where no factor between 1e-6 and 1e6 does.
        """
        target, log_delta = privacy_epsilon(epsilon, zero=False), math.log(probability("delta", delta))

        def excess(factor: float) -> float:
            return self.scaled(factor).curve().log_delta(target).upper - log_delta

        found = crossing(excess, 1.0, low=1e-6, high=1e6, spread=0.2, rtol=1e-7).upper
        if found == math.inf:
            raise Refused(f"no common factor of the noise meets epsilon {target:g} and delta {delta:g}")
        return self.scaled(calibration.nudged(lambda c: excess(c) <= 0.0, found, 1e-9))

    def more_steps(self, phase: Phase, *, epsilon: float, delta: float) -> int:
        """How many releases like those of ``phase`` still fit after all that is done; 0 if none does."""
        target, log_delta = privacy_epsilon(epsilon, zero=True), math.log(probability("delta", delta))
        before = self.done.phases

        def fits(steps: int) -> bool:
            after = replace(phase, question=calibration.with_run(phase.question, steps=steps))
            return replace(self, phases=(*before, after)).curve().log_delta(target).upper <= log_delta

        return largest_integer(fits, 1, MOST_STEPS) or 0


def unique(items: Any) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(items))


def scaled_phase(phase: Phase, factor: float) -> Phase:
    """The phase with its noise multiplier times ``factor``; raises :class:`InvalidParameter` where it has none."""
    mechanism = phase.question.mechanism
    if not isinstance(mechanism, NoisyMechanism) or mechanism.noise_multiplier is None:
        raise InvalidParameter("noise_multiplier", "nothing", f"a noise multiplier in phase {phase.name}")
    louder = replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)
    return replace(phase, question=replace(phase.question, mechanism=louder))


def phase_of(mechanism: Mechanism, name: str = "phase", bound: str | None = None, **run: Any) -> Phase:
    """A phase from a mechanism and the options of a run."""
    return Phase(question_of(mechanism, find(type(mechanism), bound), run), name)  # pyright: ignore[reportArgumentType]


def from_data(data: Mapping[str, Any], where: str = "run") -> Schedule:
    """A schedule from the data of a run file: a list ``phase`` and, for all, ``relation`` and ``discretization``.

    Raises :class:`InvalidParameter` that names the file, the entry and the key.
    """
    known = ("phase", "relation", "discretization", "composer")
    for key in data:
        if key not in known:
            raise InvalidParameter(f"{where}: {key}", data[key], "one of the keys " + ", ".join(known))
    entries = data.get("phase")
    if not isinstance(entries, list) or not entries:
        raise InvalidParameter(f"{where}: phase", entries, "a list of phases ([[phase]] in TOML)")
    shared = {"relation": data["relation"]} if "relation" in data else {}
    phases = [phase_from(entry, shared, f"{where}: phase {i + 1}") for i, entry in enumerate(entries)]
    return Schedule(tuple(phases), data.get("discretization"), data.get("composer", "privproj"))


def phase_from(entry: Any, shared: dict[str, Any], where: str) -> Phase:
    """One phase of a run file."""
    if not isinstance(entry, Mapping):
        raise InvalidParameter(where, entry, "a table of keys")
    given = {**shared, **{str(key).replace("-", "_"): value for key, value in entry.items()}}
    name = str(given.get("name", where.rsplit(": ", 1)[-1]))
    try:
        question = question_from(given)
    except InvalidParameter as error:
        raise InvalidParameter(f"{where}: {error.name}", error.value, error.expected, error.remedy) from None
    except Refused as error:
        raise Refused(f"{where}: {error}") from None
    return Phase(question, name, bool(given.get("planned", False)))


def question_from(given: dict[str, Any]) -> Question:
    """The question that the keys of an entry put."""
    mechanism, run = parsed(given)
    return question_of(mechanism, find(type(mechanism), given.get("bound")), run)


def parsed(given: dict[str, Any], others: tuple[str, ...] = OTHER_KEYS) -> tuple[Mechanism, RunOptions]:
    """The mechanism and the run that the keys of an entry describe; ``others`` are not theirs."""
    kind_name = str(given.get("mechanism"))
    kind = mechanism_named(ALIASES.get(kind_name, kind_name))
    run: dict[str, Any] = {key: given[key] for key in RUN_KEYS if key in given}
    run |= batches(given, run)
    own = {key: value for key, value in given.items() if key not in (*RUN_KEYS, *BATCH_KEYS, *others)}
    if "layer" in own:
        given_layers = own.pop("layer")
        texts = [given_layers] if isinstance(given_layers, str) else given_layers
        if not isinstance(texts, list):
            raise InvalidParameter("layer", given_layers, "a list of layers DxR, DxRxN or DxRxN@SHARE")
        own["layers"] = tuple(layer_from(text) for text in texts)
    for key in own:
        if key not in parameters_of(kind):
            raise InvalidParameter(key, own[key], "one of the keys " + ", ".join(keys_of(kind_name, others)))
    return kind(**own), run  # pyright: ignore[reportReturnType]


def keys_of(kind_name: str, others: tuple[str, ...]) -> tuple[str, ...]:
    """Every key that an entry about this mechanism may have."""
    kind = mechanism_named(ALIASES.get(kind_name, kind_name))
    layers = ("layer",) if "layers" in parameters_of(kind) else ()
    return (*parameters_of(kind), *layers, *RUN_KEYS, *BATCH_KEYS, *others)


def parameters_of(kind: type[Mechanism]) -> tuple[str, ...]:
    """The names of a mechanism's parameters."""
    return tuple(field.name for field in fields(kind))


def batches(given: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """``sampling_rate`` and ``steps`` from batch size, data set size and epochs, where these are given instead."""
    if "batch_size" not in given:
        return {}
    if "dataset_size" not in given:
        raise InvalidParameter("dataset_size", "nothing", "dataset_size with batch_size")
    if "sampling_rate" in run or ("epochs" in given and "steps" in run):
        clash = "sampling_rate" if "sampling_rate" in run else "steps"
        raise InvalidParameter(clash, run[clash], f"either {clash} or batch_size and epochs, not both")
    rate, steps = from_batches(given["batch_size"], given["dataset_size"], given.get("epochs", 1))
    return {"sampling_rate": rate, "steps": run.get("steps", steps), "public_size": True}


def layer_from(text: Any) -> Layer:
    """``DxRxN@SHARE`` as a layer."""
    shape, _, share = str(text).partition("@")
    try:
        sizes = [int(part) for part in shape.lower().split("x")]
        if len(sizes) not in (2, 3) or not str(text).isascii() or "_" in str(text):
            raise ValueError
        part = float(share) if share else None
    except ValueError:
        raise InvalidParameter("layer", text, "a layer DxR, DxRxN or DxRxN@SHARE, for instance 768x16x24") from None
    return Layer(dim=sizes[0], rank=sizes[1], count=[*sizes, 1][2], share=part)


# --- ready runs -----------------------------------------------------------------------------------


def dp_sft(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: tuple[int, int],
    share: float = 0.75,
    budget: str = "joint",
    public: bool = False,
) -> Schedule:
    """DP-SFT: a private search for a subspace, then training within it, both subsampled Gaussian mechanisms.

    ``budget="split"``: the stages get ``share`` and ``1 - share`` of epsilon and delta, by basic composition.
    ``"joint"``: both split multipliers times one factor, so that the joint composition meets the target. ``public``:
    the subspace comes from public data and costs nothing. Dimensions play no role in epsilon.
    """
    if budget not in ("joint", "split"):
        raise InvalidParameter("budget", budget, "joint or split")
    part = 0.0 if public else probability("share", share)
    stages = [("subspace", part, steps[0])] if part else []
    phases = []
    second = "training in a public subspace" if public else "training"
    for name, weight, count in [*stages, (second, 1.0 - part, steps[1])]:
        run = {"steps": count, "sampling_rate": sampling_rate}
        z = calibration.sigma(Gaussian(), epsilon=weight * epsilon, delta=weight * delta, **run).value
        phases.append(phase_of(Gaussian(noise_multiplier=z), name, **run))
    found = Schedule(tuple(phases), assumes=(PUBLIC_SUBSPACE,) if public else ())
    return found if budget == "split" or len(phases) == 1 else found.calibrated(epsilon=epsilon, delta=delta)


def prism_noise_energy(shapes: list[tuple[int, int]], rank: int, deviation: float) -> float:
    """``tau sqrt(sum over modules of r (m + n - r))``: the norm of PRISM's isotropic tangent noise, a diagnostic.

    ``tau`` is the deviation per coordinate; full-gradient DP-SGD has ``tau sqrt(sum m n)``. Epsilon is that of the
    subsampled Gaussian mechanism either way.
    """
    for m, n in shapes:
        if rank > min(m, n):
            raise InvalidParameter("rank", rank, f"a rank of at most {min(m, n)}, the smaller side of a module")
    return deviation * math.sqrt(sum(rank * (m + n - rank) for m, n in shapes))
