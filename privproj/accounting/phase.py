"""Define a phase of a run, with checks that its bound is valid.

A phase is one mechanism, its steps and sampling, and the bound that accounts for both.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from privproj.assumptions import DataAssumption, Requirement, fixed_schedule
from privproj.composition.compose import compose, compose_phases
from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError, unknown_name, within
from privproj.mechanisms import Mechanism, NoisyMechanism
from privproj.mechanisms.base import MechanismColumns, is_column
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import bounds_of, find_bound
from privproj.parameters import boolean, is_printable, quoted
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, Representation
from privproj.result import Side, Status
from privproj.run import Run, RunOptions, without_batch_sizes
from privproj.sampling import NeighboringRelation, Sampling
from privproj.targets import TARGET_PARAMETERS

OMITTED = {"group_size": 1, "public_size": False}  # values of a run that are left out of an entry of a run file

CACHED_REPRESENTATIONS = 8  # number of cached representations, for searches over the run


@dataclass(frozen=True)
class Phase:
    """One phase of a run: a mechanism, its steps and sampling, and a bound.

    :func:`privproj.schedule.phase_of` makes a phase from a mechanism.

    Attributes:
        mechanism: The mechanism.
        run: The number of releases, and how each samples its batch.
        bound: The bound that accounts for the mechanism and the run.
        allow_refuted: True to evaluate a refuted bound; its value is then marked as not being a guarantee.
        name: The name of the phase in results and messages; empty for a query about this phase alone.
        planned: True if the phase has not happened yet.

    >>> from privproj import Gaussian
    >>> from privproj.schedule import phase_of
    >>> phase = phase_of(Gaussian(noise_multiplier=1.0), "training", steps=1000, sampling_rate=0.01)
    >>> phase.name, phase.run.steps, phase.planned
    ('training', 1000, False)
    """

    mechanism: Mechanism
    run: Run
    bound: Bound
    allow_refuted: bool = False
    name: str = ""
    planned: bool = False
    # Another accountant that composes runs with such a phase; None for the accounting of privproj. The method
    # ``accounted(phases)`` of the accountant returns the phases with the bounds that it composes. The method
    # ``curve(phases, step)`` returns the joint curve of the phases on a grid with this step.
    accountant = None

    def __post_init__(self) -> None:
        """Raise :class:`InvalidParameterError` for a name that a run file cannot store."""
        if not isinstance(self.name, str) or (self.name and not is_printable(self.name)):
            raise InvalidParameterError("name", quoted(self.name), "printable text without line breaks")

    @property
    def place(self) -> str:
        """The name of the phase in an error message, with the prefix ``phase`` unless it has one."""
        return self.name if self.name == "phase" or self.name.startswith("phase ") else f"phase {self.name}"

    @property
    def description(self) -> dict[str, str | None]:
        """The mechanism, sampling, relation and bound, for an :class:`UnsupportedError`."""
        run = self.run
        return {
            "mechanism": self.mechanism.name,
            "sampling": run.sampling,
            "relation": run.relation,
            "bound": self.bound.name,
        }

    def check(self) -> None:
        """Raise an error unless the bound is valid for the mechanism and the run of this phase."""
        try:
            self._check()
        except UnsupportedError as error:
            error.describe(**self.description)
            raise

    def _check(self) -> None:
        bound, relation = self.bound, self.run.relation
        if not bound.guarantees(self.mechanism) and not self.allow_refuted:
            kind = type(self.mechanism)
            flaw = f"the bound {bound.name} is {self.status} and is not a guarantee"
            if not any(other.guarantees(self.mechanism) for other in bounds_of(kind)):
                flaw = f"no bound of {kind.name} is a guarantee; the bound {bound.name} is {self.status}"
            raise UnsupportedError(f"{flaw}: {bound.reason}")
        scheme = self.run.scheme
        if scheme.varies_in_size and not self.mechanism.poisson:
            raise UnsupportedError(
                f"{self.mechanism.name} has no amplification theorem for {self.run.sampling} sampling. "
                f"{self._advice_without_poisson()}"
            )
        if relation is not None and relation in scheme.why_unsupported:
            others = f", or sampling={scheme.instead}" if scheme.instead and self.mechanism.poisson else ""
            raise UnsupportedError(scheme.why_unsupported[relation] + others)
        if relation not in scheme.relations:
            rejected = f"sampling={self.run.sampling} is not supported under relation={relation}"
            if not self.mechanism.poisson:
                raise UnsupportedError(
                    f"{rejected}, and {self.mechanism.name} has no amplification theorem for poisson sampling. "
                    f"{self._advice_without_poisson()}"
                )
            other = Sampling.FIXED if relation is NeighboringRelation.REPLACE else Sampling.POISSON
            raise UnsupportedError(f"{rejected}. Use relation={' or '.join(scheme.relations)}, or sampling={other}")
        if self.mechanism.adapts_clip:
            self.check_count()
        if relation not in bound.relations:
            implied = scheme.relations == (relation,)
            proved = (other for other in bounds_of(type(self.mechanism)) if other.status is Status.PROVED)
            remedies = [f"bound={other.name}" for other in proved if relation in other.relations][:1]
            remedies += [] if implied else [f"relation={' or '.join(bound.relations)}"]
            raise UnsupportedError(
                f"the bound {bound.name} is not proved under relation={relation}"
                f"{f', which sampling={self.run.sampling} implies' if implied else ''}. Use {', or '.join(remedies)}"
            )
        self._check_free_parameters()
        bound.check(self.mechanism)
        if self.run.is_planned and self.reuses_projection:
            many = "every batch of an epoch" if scheme.counts_epochs else f"each of the {self.run.steps} releases"
            raise UnsupportedError(
                f"the bound {bound.name} needs a fresh projection for {many}. "
                f"{remedy_for_fixed_projection(self.mechanism)}"
            )

    def _check_free_parameters(self) -> None:
        """Raise an error if the run sets ``split`` or ``tau`` for a bound without this parameter."""
        bound, split, tau = self.bound, self.run.split, self.run.tau
        if split is not None and "split" not in bound.supports:
            raise InvalidParameterError(
                "split", split, f"omitted for the bound {bound.name}, which does not divide delta"
            )
        if tau is not None and "tau" not in bound.supports:
            raise InvalidParameterError("tau", tau, f"omitted for the bound {bound.name}, which has no tau")
        if tau is not None and self.run.group_size > 1:
            raise InvalidParameterError("tau", tau, "omitted if group_size is above 1")

    def _advice_without_poisson(self) -> str:
        # The parameters of the mechanism may be incomplete here; other checks report that.
        with suppress(PrivprojError):
            holds = NeighboringRelation.REPLACE in self.bound.relations
            if holds and isinstance(_represent(self.bound, self.mechanism), PrivacyProfile):
                return "Use sampling=fixed with relation=replace"
        return (
            "Omit the sampling options. Each release then counts as a release on the whole dataset, and every batch "
            "must meet the assumptions on the data"
        )

    def check_count(self) -> None:
        """Raise an error unless the bound covers the noisy count of adaptive clipping (C31).

        Raises:
            UnsupportedError: The bound does not cover the count, or clipping is per layer.
        """
        sigma = getattr(self.mechanism, "adaptive_clipping_sigma", None)
        if "adaptive-clipping" not in self.bound.supports:
            names = [bound.name for bound in bounds_of(type(self.mechanism)) if "adaptive-clipping" in bound.supports]
            raise UnsupportedError(
                f"the bound {self.bound.name} does not support adaptive clipping (adaptive_clipping_sigma={sigma:g}). "
                f"Use the bound {' or '.join(names)}"
            )
        if getattr(self.mechanism, "clipping", "joint") != "joint":
            raise UnsupportedError(
                f"adaptive clipping (adaptive_clipping_sigma={sigma:g}) supports "
                f"one clipping norm for all layers only. "
                "Use clipping=joint"
            )

    @property
    def reuses_projection(self) -> bool:
        """True if all releases share one projection, but the bound needs fresh projections."""
        is_fixed = bool(getattr(self.mechanism, "fixed_projection", False))
        return is_fixed and "fixed-projection" not in self.bound.supports

    @property
    def is_attained(self) -> bool:
        """True if two neighboring datasets attain the bound of one release."""
        is_about_them = self.run.group_size == 1 or self.bound.of_group == "same"
        return is_about_them and self.bound.is_exact(self.mechanism)

    def release(self) -> tuple[Representation, Run]:
        """Return the bound of one release, and the run over which it is composed.

        The bound accounts for the neighboring relation and for all records of a user. It may include the sampling of a
        step; the returned run is then unsampled (C37).

        Raises:
            UnsupportedError: The bound does not support users with several records.
        """
        self.check()
        if self.run.group_size > 1:
            self.check_group()
            form = _represent(self.bound, self.mechanism)
            if self.run.in_batches and not self._adds_shifts and isinstance(form, PrivacyProfile):
                return self._group_release(form)
        mechanism, run = self.for_relation()
        return self._at_tau(_represent(self.bound, mechanism, several=self.run.group_size > 1)), run

    def _at_tau(self, form: Representation) -> Representation:
        """Return the bound for the value of ``tau`` that the run sets, or ``form`` if the run sets none."""
        free = form.free if self.run.tau is not None and isinstance(form, PrivacyProfile) else None
        return form if free is None or self.run.tau is None else free.at(self.run.tau)

    def check_group(self) -> None:
        """Raise an error unless the bound supports users with several records.

        Raises:
            UnsupportedError: The bound covers one record only, or not several records under this sampling scheme.
        """
        size, bound, scheme = self.run.group_size, self.bound, self.run.scheme
        if bound.of_group is None:
            raise UnsupportedError(f"the bound {bound.name} protects one record and does not support group_size={size}")
        has_step = scheme.draws_records_apart or self.run.fixed_batch is not None or self._adds_shifts
        if self.run.in_batches and not has_step:
            name = self.run.sampling
            raise UnsupportedError(f"the bound {bound.name} does not support group_size={size} with {name} sampling")

    @property
    def _adds_shifts(self) -> bool:
        # True if the noise is Gaussian and a record's position determines its batch. In this case the epsilon of a user
        # is largest if all records of the user are in one batch (C37).
        form = _represent(self.bound, self.mechanism) if self.run.scheme.in_positions else None
        return isinstance(form, PrivacyProfile) and bool(form.gaussian_mu)

    def _group_release(self, form: PrivacyProfile) -> tuple[PrivacyProfile, Run]:
        """Return the privacy profile of a sampled step for a user, and the run over which it is composed (C37)."""
        if form.excess is not None or not form.can_be_subsampled:
            raise UnsupportedError(
                f"the bound {self.bound.name} has no amplification by subsampling, which "
                f"a sampled run with group_size above 1 needs"
            )
        run = self.run
        fixed = None if run.fixed_batch is None else (run.dataset_size or 0, run.fixed_batch)
        return _group_step(self.bound, self.mechanism, run.sampling_rate, run.group_size, fixed), self._whole_run

    def truncated_release(self) -> tuple[PrivacyProfile, Run] | None:
        """Return the profile of a step with truncated batches, and the run over which it is composed (C26).

        The result is None if no theorem covers the truncation of a step. Without a maximum batch size, the method
        returns ``self.profile()``.
        """
        if self.run.max_batch_size is None:
            return self.profile()
        if self.run.group_size > 1 or self.bound.of_group is None:
            return None
        one, two = (_represent(self.bound, self.mechanism.for_group(j), several=j > 1) for j in (1, 2))
        if not isinstance(one, PrivacyProfile) or not isinstance(two, PrivacyProfile):
            return None
        if one.excess is not None or not one.can_be_subsampled:
            return None
        from privproj.composition.truncated_step import truncated_step

        return truncated_step(one, two, self.run), self._whole_run

    @property
    def _whole_run(self) -> Run:
        unsampled: Any = {"sampling_rate": 1.0, "sampling": None, "max_batch_size": None, "dataset_size": None}
        return replace(self.run, group_size=1, **unsampled)

    def guess(self) -> tuple[Representation, Run]:
        """Return a bound of one release and its run, for the first guess of a search."""
        try:
            return self.release()
        except UnsupportedError:
            return self.with_run(group_size=1).release()

    def for_relation(self) -> tuple[Mechanism, Run]:
        """Return the mechanism and run for the neighboring relation, with each user as one record (C17)."""
        mechanism, run = self.mechanism, self.run
        if run.group_size > 1:
            # Account for the group as one record that is sampled if any record of the group is, and whose sensitivity
            # is that of all records together (C17).
            mechanism = mechanism.for_group(run.group_size)
            run = replace(run, group_size=1, sampling_rate=run.group_rate)
        if run.relation is NeighboringRelation.REPLACE:
            mechanism = mechanism.for_replacement()
        return mechanism, run

    def worst_differences(self) -> tuple[tuple[PrivacyProfile, ...], Run]:
        """Return privacy profiles for lower bounds, and the run over which to compose them (C28).

        Each profile is for one release and one difference between neighboring sums that the assumptions on the data
        allow. The tuple may be empty.
        """
        if self.bound.worst_differences is None or not self.bound.guarantees(self.mechanism):
            return (), self.run
        if self.run.group_size > 1 and self.run.in_batches:
            from privproj.composition.group_privacy import copies_of_record

            # The records of the user are copies of one record.
            of_record, _ = self.with_run(group_size=1).worst_differences()
            sure = [change.gaussian_mu for change in of_record if change.gaussian_mu]
            copies = (copies_of_record(mu, self.run.sampling_rate, self.run.group_size) for mu in sure)
            return tuple(copies), self._whole_run
        mechanism, run = self.for_relation()
        assumed = getattr(self.mechanism, "change_rank", None)
        if assumed is not None:
            # A difference of full norm is that of K copies of one record, so its rank is at most the assumed rank.
            mechanism = replace(mechanism, change_rank=assumed)  # pyright: ignore[reportCallIssue]
        return self.bound.worst_differences(mechanism), run

    def profile(self) -> tuple[PrivacyProfile, Run]:
        """Return the privacy profile of one release, and the run over which it is composed.

        Raises:
            InvalidParameterError: A parameter is missing or out of range.
            UnsupportedError: The bound has no privacy profile, or no amplification by subsampling.
        """
        with within(self.place):
            form, run = self.release()
            if not isinstance(form, PrivacyProfile):
                raise UnsupportedError(
                    f"the bound {self.bound.name} has no privacy profile, which joint composition needs. "
                    "`privproj bounds` lists bounds that have one"
                )
            if (run.sampling_rate < 1.0 or run.allocates) and not form.can_be_subsampled:
                raise UnsupportedError(f"the bound {self.bound.name} has no amplification by subsampling")
        return form, run

    def curve(self, resolution: float | None = None) -> Curve:
        """Return the privacy curve of the phase, composed over all its releases.

        ``resolution`` is the number of evaluations of a profile per standard deviation of the privacy loss. A value
        below the default is faster and less accurate; use it only to guide a search.
        """
        form, run = self.release()
        if resolution is not None and isinstance(form, PrivacyProfile):
            form = replace(form, resolution=resolution)
        if isinstance(form, PrivacyProfile) and run.single and run.discretization is None:
            return form
        if not isinstance(form, PrivacyProfile) and run.allocates and not run.single:
            raise UnsupportedError(
                f"the bound {self.bound.name} does not support balls-in-bins "
                f"sampling. Use a bound with a privacy profile"
            )
        with within(self.bound.name):
            curve = compose(form, run) if isinstance(form, PrivacyProfile) else form.over_run(run)
        return with_truncation(curve, [self])

    def as_dict(self) -> dict[str, object]:
        """Return the phase as plain names and values, as a run file stores it."""
        parameters = {"layer" if key == "layers" else key: value for key, value in self.mechanism.parameters().items()}
        run = {**self.run.parameters(), "split": self.run.split, "tau": self.run.tau}.items()
        options = {key: value for key, value in run if value is not None and OMITTED.get(key) != value}
        options |= {"planned": True} if self.planned else {}
        return {"name": self.name, "mechanism": self.mechanism.name, **parameters, "bound": self.bound.name, **options}

    def with_mechanism(self, **changes: object) -> "Phase":
        """Return the phase with some parameters of its mechanism changed."""
        return replace(self, mechanism=replace(self.mechanism, **changes))  # pyright: ignore[reportArgumentType]

    def with_run(self, **changes: object) -> "Phase":
        """Return the phase with some options of its run changed."""
        return replace(self, run=replace(self.run, **changes))  # pyright: ignore[reportArgumentType]

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings of the mechanism and the run for every result of this phase."""
        notes, rank = (*self.mechanism.notes(), *self.run.notes), getattr(self.mechanism, "change_rank", None) or 1
        if rank > 1 and DataAssumption.DIFFERENCE_RANK.at(k=1) in self.bound.assumptions(self.mechanism):
            notes += (
                f"This bound holds only if neighboring sums differ by a matrix of rank 1, but change_rank is {rank}. "
                "Use another bound.",
            )
        return notes

    @property
    def data_assumptions(self) -> tuple[str, ...]:
        """The assumptions of the bound on the data; empty if it holds for all data."""
        of_bound = tuple(assumption.text for assumption in self.bound.assumptions(self.mechanism))
        if self.run.group_size == 1:
            return of_bound
        handled = "clipped and drawn" if self.run.in_batches and not self.run.scheme.in_positions else "clipped"
        of_user = DataAssumption.RECORDS_PER_USER.at(count=self.run.group_size, handled=handled)
        return (*of_bound, of_user.text)

    @property
    def mechanism_requirements(self) -> tuple[str, ...]:
        """The requirements on how the program computes one release."""
        requirements = (*self.bound.requirements(type(self.mechanism)), *self.mechanism.clipping_requirements)
        # Bounds that also hold for dependent projections of the layers do not require independent ones (C6).
        if self.mechanism.projects_apart and not {"fixed-projection", "shared-projection"} & set(self.bound.supports):
            return (*requirements, Requirement.INDEPENDENT_LAYER_PROJECTIONS)
        return requirements

    @property
    def run_requirements(self) -> tuple[str, ...]:
        """The requirements on how the program runs: batches, projections and schedule."""
        run, bound, mechanism = self.run, self.bound, self.mechanism
        requirements: list[str] = [run.scheme.requirements] if run.scheme.requirements else []
        if run.public_size and run.relation is NeighboringRelation.ADD_REMOVE:
            requirements.append(Requirement.PUBLIC_DATASET_SIZE)
        if run.max_batch_size is not None:
            requirements.append(Requirement.RANDOM_TRUNCATION)
        if run.is_planned:
            requirements.append(fixed_schedule(adapts=mechanism.adapts_clip))
        projects = hasattr(mechanism, "fixed_projection") and "fixed-projection" not in bound.supports
        if projects and run.scheme.counts_epochs:
            requirements.append(Requirement.FRESH_PROJECTION_PER_BATCH)
        # Unlike an assumption on the rank of the difference, one on the values of the query depends on the batch.
        on_values = any(one.kind is not DataAssumption.DIFFERENCE_RANK for one in bound.assumptions(mechanism))
        if on_values and run.in_batches:
            requirements.append(Requirement.ASSUMPTIONS_PER_BATCH)
        is_replaced = run.relation is NeighboringRelation.REPLACE
        if is_replaced and isinstance(mechanism, NoisyMechanism) and not on_values:
            requirements.append(Requirement.REPLACE_SENSITIVITY)
        return tuple(requirements)

    @property
    def status(self) -> Status:
        """The status of the bound, such as proved, conditional or refuted.

        A proved bound is conditional if it needs an assumption on the data, or if users have several records.
        """
        if not self.bound.guarantees(self.mechanism):
            return self.bound.status
        has_assumptions = self.run.group_size > 1 or self.bound.assumptions(self.mechanism)
        return Status.CONDITIONAL if has_assumptions else Status.PROVED

    def side(self, curve: Curve) -> Side:
        """Return whether the values of a privacy curve of this phase are exact or upper bounds."""
        # Values are exact if the mechanism attains the bound and the curve is a closed form. For shuffled batches they
        # are upper bounds, because amplification by shuffling is not counted. For a user whose records are in several
        # batches of a partition they are upper bounds too: a batch may be smaller than a group.
        run = self.run
        hides = run.scheme.is_shuffled or (run.scheme.in_positions and run.group_size > 1)
        return Side.EXACT if self.is_attained and not hides and not numerics_of(curve) else Side.UPPER


def with_truncation(curve: Curve, phases: Sequence[Phase]) -> Curve:
    """Return the privacy curve of several phases with truncated batches (C26).

    ``curve`` is the privacy curve without truncation.
    """
    if all(phase.run.max_batch_size is None for phase in phases):
        return curve
    from privproj.composition.truncated_poisson import SmallerCurve, TruncatedCurve, with_truncated_batches

    truncated = with_truncated_batches(curve, [phase.run for phase in phases])
    if not isinstance(truncated, TruncatedCurve) or truncated.leads_with_epsilon:
        return truncated
    releases = [phase.truncated_release() for phase in phases]
    steps = [release for release in releases if release is not None]
    if len(steps) < len(releases):
        return truncated
    step = phases[0].run.discretization
    return SmallerCurve(truncated, lambda: compose(*steps[0]) if len(steps) == 1 else compose_phases(steps, step))


def check_mechanism(mechanism: object) -> None:
    """Raise :class:`InvalidParameterError` unless the argument is a mechanism."""
    if isinstance(mechanism, MechanismColumns):
        arrays = ", ".join(name for name, value in mechanism.parameters.items() if is_column(name, value))
        remedy = "for arrays use privproj.epsilons, deltas or sigmas"
        raise InvalidParameterError(arrays, "an array", "one number", remedy)
    if isinstance(mechanism, type) and issubclass(mechanism, Mechanism):
        remedy = f"write {mechanism.call_text()}"
        raise InvalidParameterError("mechanism", f"the class {mechanism.__name__}", "an instance", remedy)
    if not isinstance(mechanism, Mechanism):
        value = f"the text {mechanism!a}" if isinstance(mechanism, str) else mechanism
        several = "several phases are a privproj.schedule.Composition" if isinstance(mechanism, list | tuple) else ""
        raise InvalidParameterError(
            "mechanism", value, "an object such as privproj.Gaussian(noise_multiplier=1.0)", several
        )


def phase_for(mechanism: Mechanism, bound: Bound | str | None, run: RunOptions, name: str = "") -> Phase:
    """Return the phase of a run from a mechanism, a bound and run options.

    Without a neighboring relation, the run gets the default relation of the bound, or otherwise of the sampling scheme.
    """
    check_mechanism(mechanism)
    bound = bound if isinstance(bound, Bound) else find_bound(type(mechanism), bound)
    options: Any = dict(without_batch_sizes(run))
    for key in (key for key in options if key not in RunOptions.__annotations__):
        if key in TARGET_PARAMETERS:
            remedy = "give the target of the function: privproj.epsilon takes delta, and privproj.delta takes epsilon"
            raise InvalidParameterError(key, options[key], "omitted", remedy)
        raise unknown_name(key, options[key], "option of a run", RunOptions.__annotations__, word=key)
    allowed = boolean("allow_refuted", options.pop("allow_refuted", False))
    if options.get("relation") is None:
        options["relation"] = bound.default_relation
    return Phase(mechanism, Run(**options), bound, allowed, name)


@lru_cache(maxsize=CACHED_REPRESENTATIONS)
def _represent(bound: Bound, mechanism: Mechanism, *, several: bool = False) -> Representation:
    """Return a bound of one release, such as a privacy profile or a Renyi curve.

    If ``several`` is True, the bound holds for several records of one user.
    """
    # If neighboring datasets can differ in one vector only, differences have rank one for groups too.
    if several and callable(bound.of_group) and getattr(mechanism, "largest_rank", None) != 1:
        return bound.of_group(mechanism)
    return bound.representation(mechanism)


@lru_cache(maxsize=CACHED_REPRESENTATIONS)
def _group_step(
    bound: Bound, mechanism: Mechanism, rate: float, size: int, fixed: tuple[int, int] | None
) -> PrivacyProfile:
    """Return the privacy profile of a sampled step for several records of one user (C37).

    ``fixed`` is the dataset size and the batch size; None means Poisson sampling.
    """
    from privproj.composition.group_privacy import fixed_size_weights, group_step, poisson_weights

    def member(count: int) -> PrivacyProfile:
        seen = mechanism.for_group(count)
        form = _represent(bound, seen if fixed is None else seen.for_replacement(), several=count > 1)
        assert isinstance(form, PrivacyProfile)
        return form

    weights = poisson_weights(rate, size) if fixed is None else fixed_size_weights(*fixed, size)
    return group_step(member, weights, of_fixed_size=fixed is not None)


def numerics_of(curve: Curve) -> dict[str, object]:
    """Return the numerical parameters of a composed privacy curve; empty for a closed form."""
    return dict(getattr(curve, "numerics", {}))


def remedy_for_fixed_projection(mechanism: Mechanism) -> str:
    """Return a sentence that names the bounds that hold for a fixed projection."""
    names = [bound.name for bound in bounds_of(type(mechanism)) if "fixed-projection" in bound.supports]
    allowed = " or ".join(f"bound={name}" for name in names)
    return f"For a fixed projection, pass {allowed}" if names else "No bound supports a fixed projection here"
