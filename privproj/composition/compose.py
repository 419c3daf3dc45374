"""The one entry from releases to a run: the cheapest form that is valid, or a composition on a grid of losses."""

from dataclasses import replace

from privproj.errors import PrecisionLimit, Refused
from privproj.profiles.privacy_profile import Curve, Phases, PrivacyProfile
from privproj.run import Run


def compose(profile: PrivacyProfile, run: Run) -> Curve:
    """The curve of ``run.steps`` adaptive releases that each have this profile, subsampled as the run says.

    It is as sound as the profile. The cheapest form that is valid is taken:

    1. one release on the whole data set, or one epoch that is one: the profile itself;
    2. several on the whole data set: the closed form of the profile, if it has one;
    3. one on a sampled batch: the profile amplified by subsampling (C17), unless a grid was asked for;
    4. else a composition on a grid of losses (C2, C18, C19, C23).

    Raises:
        Refused: The bound has no amplification by subsampling.
        PrecisionLimit: The grid would take more memory or time than is allowed.
    """
    step = run.discretization
    if run.single and not (profile.excess and step):
        return profile
    if run.allocates:
        return compose_phases([(profile, run)], step)
    if run.sampling_rate == 1.0 and profile.closed_form is not None:
        return profile.closed_form(run.steps)
    if run.sampling_rate < 1.0 and not profile.can_be_subsampled:
        raise Refused("this bound has no amplification by subsampling in its own terms; expected sampling_rate=1")
    if run.steps == 1 and not step:
        return profile.sampled(run.sampling_rate)
    return compose_on_grid([(profile, run)], step)


def compose_phases(phases: Phases, step: float | None = None) -> Curve:
    """The joint curve of phases with different profiles and runs, as sound as these; raises as :func:`compose` does.

    ``step`` is the distance of lattice points of the whole composition in nats (None: as fine as the profiles are
    worth).
    """
    phases = [release for phase in phases for release in releases_of(*phase)]
    if len(phases) == 1:
        profile, run = phases[0]
        return compose(profile, replace(run, discretization=step))
    return compose_on_grid(phases, step)


def releases_of(profile: PrivacyProfile, run: Run) -> Phases:
    """The phase itself, or its epochs, each as one release, where a record picks its batches at random (C25)."""
    if not run.allocates or run.single:
        return [(profile, run)]
    from privproj.composition.balls_in_bins import allocate

    return allocate(profile, run)


def compose_on_grid(phases: Phases, step: float | None = None) -> Curve:
    """Phases composed jointly on one grid of losses, whatever closed forms they have (C2).

    Without ``step`` (nats) the grid is as fine as the profile that needs the finest one is worth. Raises
    :class:`PrecisionLimit` where that takes more memory or time than is allowed.
    """
    from privproj.composition.dominating_pairs import outline_step
    from privproj.composition.grid import GridCurve
    from privproj.composition.tails import DepthCurve

    try:
        first: GridCurve | PrecisionLimit = GridCurve([outline_step(*phase) for phase in phases], step)
    except PrecisionLimit as error:
        first = error
    return DepthCurve(first, phases, step)
