"""A phase of a run: one mechanism, one run and one bound, with their checks."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from privproj.assumptions import DataAssumption, Requirement, fixed_schedule
from privproj.composition.compose import compose
from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError, unknown_name, within
from privproj.mechanisms import Mechanism, NoisyMechanism
from privproj.mechanisms.base import MechanismColumns, is_column
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import bounds_of, find_bound
from privproj.parameters import boolean, is_printable
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, Representation
from privproj.result import Side, Status
from privproj.run import Run, RunOptions, without_batch_sizes
from privproj.sampling import NeighboringRelation

SILENT = {"group_size": 1, "public_size": False}  # Values of a run that are left out of an entry of a run file

KEPT_REPRESENTATIONS = 8  # Number of cached representations, for searches over the run


@dataclass(frozen=True)
class Phase:
    """One phase of a run: a mechanism, how often it is released, and the bound that accounts for it.

    :func:`privproj.schedule.phase_of` makes one from a mechanism.

    Attributes:
        mechanism: What is released.
        run: How often, and on what batches.
        bound: The record of the bound, a :class:`privproj.mechanisms.bound.Bound`.
        allow_refuted: True lets a refuted bound be evaluated; its number is then marked as no guarantee.
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
    accountant = None
    """The accountant that composes a run with such a phase; None for the accounting of this package.

    Its ``accounted(phases)`` returns the phases with the bounds that it composes, and its ``curve(phases, step)`` their
    joint curve on a grid with this step.
    """

    def __post_init__(self) -> None:
        """Raise :class:`InvalidParameterError` for a name that a run file cannot hold."""
        if not isinstance(self.name, str) or (self.name and not is_printable(self.name)):
            raise InvalidParameterError("name", ascii(self.name)[:60], "text that can be printed on one line")

    def check(self) -> None:
        """Raise an error unless the bound is sound for this phase."""
        bound, relation = self.bound, self.run.relation
        if not bound.guarantees(self.mechanism) and not self.allow_refuted:
            raise UnsupportedError(f"{bound.name} is {self.status}, not a guarantee: {bound.reason}")
        scheme = self.run.scheme
        if scheme.varies_in_size and not self.mechanism.poisson:
            raise UnsupportedError(
                f"no amplification theorem for {self.mechanism.name} under sampling={self.run.sampling}; "
                f"{self._advice_without_poisson()}"
            )
        if relation is not None and relation in scheme.why_refused:
            raise UnsupportedError(scheme.why_refused[relation])
        if relation not in scheme.relations:
            raise UnsupportedError(
                f"no amplification theorem here for sampling={self.run.sampling} with relation={relation}; "
                "supported below rate 1: poisson with add-remove or zero-out, fixed with replace"
            )
        if self.mechanism.adapts_clip:
            self.check_count()
        if relation not in bound.relations:
            allowed = ", ".join(bound.relations)
            proved = (other for other in bounds_of(type(self.mechanism)) if other.status is Status.PROVED)
            names = [other.name for other in proved if relation in other.relations]
            better = f"; --bound {names[0]} does" if names else ""
            raise UnsupportedError(
                f"{bound.name} does not hold under relation={relation}; it holds under {allowed}{better}"
            )
        if self.run.split is not None and "split" not in bound.supports:
            raise InvalidParameterError("split", self.run.split, f"no split, since {bound.name} does not divide delta")
        bound.check(self.mechanism)
        if self.run.is_planned and self.reuses_projection:
            many = "every batch of an epoch" if scheme.counts_epochs else f"each of the {self.run.steps} releases"
            raise UnsupportedError(
                f"{bound.name} needs a fresh projection for {many}: with a fixed one "
                f"later releases can carry the whole sensitivity; {remedy_for_fixed_projection(self.mechanism)}"
            )

    def _advice_without_poisson(self) -> str:
        """Return what to use if the mechanism has no theorem for batches of varying size."""
        # A missing parameter is reported once the sampling is left out.
        with suppress(PrivprojError):
            holds = NeighboringRelation.REPLACE in self.bound.relations
            if holds and isinstance(_represent(self.bound, self.mechanism), PrivacyProfile):
                return f"{self.bound.name} has one for sampling=fixed with relation=replace"
        return "leave the sampling out, which counts a release on all data, whose promises every batch has to keep"

    def check_count(self) -> None:
        """Raise :class:`UnsupportedError` unless the bound covers the private count of adaptive clipping (C31)."""
        sigma = getattr(self.mechanism, "adaptive_clipping_sigma", None)
        if "adaptive-clipping" not in self.bound.supports:
            names = [bound.name for bound in bounds_of(type(self.mechanism)) if "adaptive-clipping" in bound.supports]
            raise UnsupportedError(
                f"{self.bound.name} has no theorem for a clip that adapts to a private count, got "
                f"adaptive_clipping_sigma={sigma:g}; use {' or '.join(names)}"
            )
        if getattr(self.mechanism, "clipping", "joint") != "joint":
            raise UnsupportedError(
                f"a clip that adapts to a private count is one clip for all layers; expected clipping=joint with "
                f"adaptive_clipping_sigma={sigma:g}"
            )

    @property
    def reuses_projection(self) -> bool:
        """True if the projection is fixed, although the bound needs a fresh one for each release."""
        is_fixed = bool(getattr(self.mechanism, "fixed_projection", False))
        return is_fixed and "fixed-projection" not in self.bound.supports

    @property
    def is_truth(self) -> bool:
        """True if the bound of one release is attained by datasets that differ in the records of one user."""
        is_about_them = self.run.group_size == 1 or self.bound.of_group == "same"
        return is_about_them and self.bound.is_exact(self.mechanism)

    def release(self) -> tuple[Representation, Run]:
        """Return the bound of one release in its own representation, and the run that it is composed over.

        The relation replace and a group on the whole data set have changed the mechanism here; a step that draws the
        records of a group is one release (C37). Raises :class:`UnsupportedError` for a group about which the bound
        says nothing.
        """
        self.check()
        if self.run.group_size > 1:
            self.check_group()
            form = _represent(self.bound, self.mechanism)
            if self.run.in_batches and not self._adds_shifts and isinstance(form, PrivacyProfile):
                return self._group_release(form)
        mechanism, run = self.for_relation()
        return _represent(self.bound, mechanism, several=self.run.group_size > 1), run

    def check_group(self) -> None:
        """Raise an error unless the bound holds for groups and batches sample records independently."""
        size, bound, scheme = self.run.group_size, self.bound, self.run.scheme
        if bound.of_group is None:
            raise UnsupportedError(f"{bound.name} is about one record; group_size={size} changes more than that")
        has_step = scheme.draws_records_apart or self.run.fixed_batch is not None or self._adds_shifts
        if self.run.in_batches and not has_step:
            name = self.run.sampling
            raise UnsupportedError(
                f"{bound.name} has no bound of a step for a person with {size} records under {name} sampling"
            )

    @property
    def _adds_shifts(self) -> bool:
        """True if an epoch costs a user most when all their records are in one batch: Gaussian noise (C37)."""
        form = _represent(self.bound, self.mechanism) if self.run.scheme.in_positions else None
        return isinstance(form, PrivacyProfile) and bool(form.gaussian_mu)

    def _group_release(self, form: PrivacyProfile) -> tuple[PrivacyProfile, Run]:
        """Return a step that samples the records of a group, as one release, and the run of such releases (C37)."""
        if form.excess is not None or not form.can_be_subsampled:
            raise UnsupportedError(
                f"{self.bound.name} has no amplification by subsampling, which a step for a group needs"
            )
        run = self.run
        fixed = None if run.fixed_batch is None else (run.dataset_size or 0, run.fixed_batch)
        return _group_step(self.bound, self.mechanism, run.sampling_rate, run.group_size, fixed), self._whole_run

    @property
    def _whole_run(self) -> Run:
        """The run of such steps, whose sampling is part of the profile of a step."""
        unsampled: Any = {"sampling_rate": 1.0, "sampling": None, "max_batch_size": None, "dataset_size": None}
        return replace(self.run, group_size=1, **unsampled)

    def guess(self) -> tuple[Representation, Run]:
        """Return :meth:`release` for the first guess of a search, or that of one record if a group has none."""
        try:
            return self.release()
        except UnsupportedError:
            return self.with_run(group_size=1).release()

    def for_relation(self) -> tuple[Mechanism, Run]:
        """Return the mechanism and the run with the sensitivity of the group and of the neighboring relation."""
        mechanism, run = self.mechanism, self.run
        if run.group_size > 1:
            # As one record that is sampled if any record of the group is, with the difference of all of them (C17).
            mechanism = mechanism.for_group(run.group_size)
            run = replace(run, group_size=1, sampling_rate=run.group_rate)
        if run.relation is NeighboringRelation.REPLACE:
            mechanism = mechanism.for_replacement()
        return mechanism, run

    def worst_differences(self) -> tuple[tuple[PrivacyProfile, ...], Run]:
        """Return profiles of possible differences of one release, none if none is known (C28), and their run.

        For a group that is sampled record by record, they are of copies of one record with a deterministic shift.
        """
        if self.bound.worst_differences is None or not self.bound.guarantees(self.mechanism):
            return (), self.run
        if self.run.group_size > 1 and self.run.in_batches:
            from privproj.composition.group_privacy import copies_of_record

            of_record, _ = self.with_run(group_size=1).worst_differences()
            sure = [change.gaussian_mu for change in of_record if change.gaussian_mu]
            copies = (copies_of_record(mu, self.run.sampling_rate, self.run.group_size) for mu in sure)
            return tuple(copies), self._whole_run
        mechanism, run = self.for_relation()
        promised = getattr(self.mechanism, "change_rank", None)
        if promised is not None:
            # A difference of full norm is that of K copies of one record, whose rank is limited by the assumption.
            mechanism = replace(mechanism, change_rank=promised)  # pyright: ignore[reportCallIssue]
        return self.bound.worst_differences(mechanism), run

    def profile(self) -> tuple[PrivacyProfile, Run]:
        """Return the privacy profile of one release and the run that it is composed over, for a joint composition.

        Raises :class:`InvalidParameterError` for a parameter that is missing or outside its domain, and
        :class:`UnsupportedError` where the bound has no privacy profile, or no amplification by subsampling.
        """
        with within(f"phase {self.name}"):
            form, run = self.release()
            if not isinstance(form, PrivacyProfile):
                raise UnsupportedError(
                    f"{self.bound.name} has no privacy profile, which joint composition needs; privproj bounds lists "
                    "those that have one"
                )
            if (run.sampling_rate < 1.0 or run.allocates) and not form.can_be_subsampled:
                raise UnsupportedError(f"{self.bound.name} has no amplification by subsampling")
        return form, run

    def curve(self, resolution: float | None = None) -> Curve:
        """Return the privacy curve of the phase, composed from a profile or in the terms of the bound.

        A smaller ``resolution`` is faster and less accurate; use it only to guide a search.
        """
        form, run = self.release()
        if resolution is not None and isinstance(form, PrivacyProfile):
            form = replace(form, resolution=resolution)
        if isinstance(form, PrivacyProfile) and run.single and run.discretization is None:
            return form
        if not isinstance(form, PrivacyProfile) and run.allocates and not run.single:
            raise UnsupportedError(
                f"{self.bound.name} has no theorem for balls-in-bins, because it accounts for runs in its own terms; "
                "expected a bound with a privacy profile"
            )
        with within(self.bound.name):
            curve = compose(form, run) if isinstance(form, PrivacyProfile) else form.over_run(run)
        return cut_batches(curve, [self])

    def as_dict(self) -> dict[str, object]:
        """Return the phase as an entry of a run file."""
        parameters = {"layer" if key == "layers" else key: value for key, value in self.mechanism.parameters().items()}
        run = {**self.run.parameters(), "split": self.run.split}.items()
        options = {key: value for key, value in run if value is not None and SILENT.get(key) != value}
        options |= {"planned": True} if self.planned else {}
        return {"name": self.name, "mechanism": self.mechanism.name, **parameters, "bound": self.bound.name, **options}

    def with_mechanism(self, **changes: object) -> "Phase":
        """Return the phase with these parameters of its mechanism changed."""
        return replace(self, mechanism=replace(self.mechanism, **changes))  # pyright: ignore[reportArgumentType]

    def with_run(self, **changes: object) -> "Phase":
        """Return the phase with these parameters of its run changed."""
        return replace(self, run=replace(self.run, **changes))  # pyright: ignore[reportArgumentType]

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings of every result of this phase."""
        notes, rank = (*self.mechanism.notes(), *self.run.notes), getattr(self.mechanism, "change_rank", None) or 1
        if rank > 1 and DataAssumption.DIFFERENCE_RANK.at(k=1) in self.bound.assumptions(self.mechanism):
            notes += (
                f"This bound holds only if neighboring sums differ by a matrix of rank 1, but change_rank is {rank}. "
                "Use another bound.",
            )
        return notes

    @property
    def data_assumptions(self) -> tuple[str, ...]:
        """The assumptions on the data; empty for a bound that holds for all data."""
        of_bound = tuple(assumption.text for assumption in self.bound.assumptions(self.mechanism))
        if self.run.group_size == 1:
            return of_bound
        handled = "clipped and drawn" if self.run.in_batches and not self.run.scheme.in_positions else "clipped"
        of_user = DataAssumption.RECORDS_PER_USER.at(count=self.run.group_size, handled=handled)
        return (*of_bound, of_user.text)

    @property
    def mechanism_requirements(self) -> tuple[str, ...]:
        """The requirements of the bound on one release of the mechanism."""
        requirements = (*self.bound.requirements(type(self.mechanism)), *self.mechanism.clipping_requirements)
        # Bounds that hold for one or for dependent projections of the layers do not require independent ones (C6).
        if self.mechanism.projects_apart and not {"fixed-projection", "shared-projection"} & set(self.bound.supports):
            return (*requirements, Requirement.INDEPENDENT_LAYER_PROJECTIONS)
        return requirements

    @property
    def run_requirements(self) -> tuple[str, ...]:
        """The requirements of the number on the run."""
        run, bound, mechanism = self.run, self.bound, self.mechanism
        requirements: list[str] = [run.scheme.requirements] if run.scheme.requirements else []
        if run.public_size:
            requirements.append(Requirement.PUBLIC_DATASET_SIZE)
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
        """The status of the bound at these parameters: a guarantee is conditional exactly if it has assumptions.

        A group size is an assumption on the data too.
        """
        if not self.bound.guarantees(self.mechanism):
            return self.bound.status
        has_assumptions = self.run.group_size > 1 or self.bound.assumptions(self.mechanism)
        return Status.CONDITIONAL if has_assumptions else Status.PROVED

    def side(self, curve: Curve) -> Side:
        """Return exact if the bound is attained by the mechanism and the curve is a closed form, else an upper bound.

        Amplification by shuffling is not counted, so values for shuffled batches are never exact; neither are those for
        a user whose records are in several batches of a partition.
        """
        run = self.run
        # A batch may be smaller than a group.
        hides = run.scheme.is_shuffled or (run.scheme.in_positions and run.group_size > 1)
        return Side.EXACT if self.is_truth and not hides and not numerics_of(curve) else Side.UPPER


def cut_batches(curve: Curve, phases: Sequence[Phase]) -> Curve:
    """Return the joint curve of these phases with truncated batches (C26)."""
    if all(phase.run.max_batch_size is None for phase in phases):
        return curve
    from privproj.composition.truncated_poisson import with_cut_batches

    return with_cut_batches(curve, [phase.run for phase in phases])


def check_mechanism(mechanism: object) -> None:
    """Raise :class:`InvalidParameterError` unless the argument is one mechanism."""
    if isinstance(mechanism, MechanismColumns):
        arrays = ", ".join(name for name, value in mechanism.parameters.items() if is_column(name, value))
        kind = mechanism.kind.__name__
        remedy = "privproj.epsilons, deltas and sigmas take arrays"
        raise InvalidParameterError(arrays, f"arrays in {kind}", f"one value for each parameter of {kind}", remedy)
    if not isinstance(mechanism, Mechanism):
        raise InvalidParameterError(
            "mechanism", mechanism, "a mechanism with its parameters, such as privproj.Gaussian()"
        )


def phase_for(mechanism: Mechanism, bound: Bound | str | None, run: RunOptions, name: str = "") -> Phase:
    """Return the phase with this bound, the bound of this name, or the default of the mechanism for None.

    A relation that is not given is that of the bound, or else of the mechanism.
    """
    check_mechanism(mechanism)
    bound = bound if isinstance(bound, Bound) else find_bound(type(mechanism), bound)
    options: Any = dict(without_batch_sizes(run))
    for key in (key for key in options if key not in RunOptions.__annotations__):
        raise unknown_name(key, options[key], "an option of a run", RunOptions.__annotations__, word=key)
    allowed = boolean("allow_refuted", options.pop("allow_refuted", False))
    if options.get("relation") is None:
        options["relation"] = bound.default_relation
    return Phase(mechanism, Run(**options), bound, allowed, name)


@lru_cache(maxsize=KEPT_REPRESENTATIONS)
def _represent(bound: Bound, mechanism: Mechanism, *, several: bool = False) -> Representation:
    """Return the bound of one release, for several records of one user if ``several``; it is cached."""
    # A query of which one vector is the only thing that can differ has differences of rank one for groups too.
    if several and callable(bound.of_group) and getattr(mechanism, "largest_rank", None) != 1:
        return bound.of_group(mechanism)
    return bound.representation(mechanism)


@lru_cache(maxsize=KEPT_REPRESENTATIONS)
def _group_step(
    bound: Bound, mechanism: Mechanism, rate: float, size: int, fixed: tuple[int, int] | None
) -> PrivacyProfile:
    """Return a step for a group, Poisson-sampled or with a ``fixed`` (dataset, batch) size; it is cached."""
    from privproj.composition.group_privacy import fixed_size_weights, group_step, poisson_weights

    def member(count: int) -> PrivacyProfile:
        seen = mechanism.for_group(count)
        form = _represent(bound, seen if fixed is None else seen.for_replacement(), several=count > 1)
        assert isinstance(form, PrivacyProfile)
        return form

    weights = poisson_weights(rate, size) if fixed is None else fixed_size_weights(*fixed, size)
    return group_step(member, weights, of_fixed_size=fixed is not None)


def numerics_of(curve: Curve) -> dict[str, object]:
    """Return how the curve was computed, by name; empty for a closed form."""
    return dict(getattr(curve, "numerics", {}))


def remedy_for_fixed_projection(mechanism: Mechanism) -> str:
    """Return which bounds hold for a fixed projection, for a message."""
    names = [bound.name for bound in bounds_of(type(mechanism)) if "fixed-projection" in bound.supports]
    return " or ".join(f"--bound {name} holds for any projection" for name in names) or "no bound here allows that"
