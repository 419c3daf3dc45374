"""Compose the privacy profile of one release to the privacy curve of a run."""

from dataclasses import replace

from privproj.errors import PrecisionError, UnsupportedError
from privproj.profiles.privacy_profile import Curve, Phases, PrivacyProfile
from privproj.run import Run


def compose(profile: PrivacyProfile, run: Run) -> Curve:
    """Return the privacy curve of a run of adaptive releases.

    The curve is a valid upper bound if ``profile`` is valid. The first of these methods that applies is used:

    1. one release on the whole dataset: the profile itself; 2. several releases on the whole dataset: the closed form
    of their composition, if the profile has one; 3. one release on a sampled batch: the profile amplified by
    subsampling (C17), unless ``run.discretization`` is set; 4. otherwise: composition on a discretization grid (C2,
    C18, C19, C23).

    Args:
        profile: The privacy profile of one release.
        run: The number of steps, the sampling and the discretization.

    Raises:
        UnsupportedError: The run samples batches, and the bound has no subsampling theorem.
        PrecisionError: The grid exceeds the limits of memory or time.
    """
    # An epoch of balls-in-bins sampling is accounted as one release on the whole dataset.
    step = run.discretization
    if run.single and not (profile.excess and step):
        return profile
    if run.allocates:
        return compose_phases([(profile, run)], step)
    if run.sampling_rate == 1.0 and profile.closed_form is not None:
        return profile.closed_form(run.steps)
    if run.sampling_rate < 1.0 and not profile.can_be_subsampled:
        raise UnsupportedError("this bound has no amplification by subsampling. Use sampling_rate=1, or another bound")
    if run.steps == 1 and not step:
        return profile.sampled(run.sampling_rate)
    return compose_on_grid([(profile, run)], step)


def compose_phases(phases: Phases, step: float | None = None) -> Curve:
    """Return the joint privacy curve of several phases, each with its own profile and run.

    The curve is a valid upper bound if all profiles are valid.

    Args:
        phases: The profile of one release of each phase, and the run of the phase.
        step: The distance of two grid points in nats (None: as fine as the profiles require).

    Raises:
        UnsupportedError: A phase samples batches, and its bound has no subsampling theorem.
        PrecisionError: The grid exceeds the limits of memory or time.
    """
    releases = [release for phase in phases for release in releases_of(*phase)]
    if len(releases) == 1 and not phases[0][1].is_bounded_by_blocks:
        profile, run = releases[0]
        return compose(profile, replace(run, discretization=step))
    has_blocks = any(run.is_bounded_by_blocks for _, run in phases)
    in_blocks = [release for phase in phases for release in releases_of(*phase, in_blocks=True)] if has_blocks else None
    return compose_on_grid(releases, step, in_blocks)


def releases_of(profile: PrivacyProfile, run: Run, *, in_blocks: bool = False) -> Phases:
    """Return the epochs of a balls-in-bins run as releases on the whole dataset (C25).

    Args:
        profile: The privacy profile of one release.
        run: A run; without balls-in-bins sampling, the result is the given profile and run.
        in_blocks: If True, each epoch is divided into blocks with one batch of a record each. The bound is usually
            looser, but resolves smaller deltas.
    """
    if not run.allocates or run.single:
        return [(profile, run)]
    from privproj.composition.balls_in_bins import allocate

    return allocate(profile, run, run.batches_per_record if in_blocks else None)


def compose_on_grid(phases: Phases, step: float | None = None, in_blocks: Phases | None = None) -> Curve:
    """Return the privacy curve of several phases, composed on one discretization grid.

    Args:
        phases: The profile of one release of each phase, and the run of the phase.
        step: The distance of two grid points in nats (None: that of the profile that needs the finest grid).
        in_blocks: None, or phases whose composition is another upper bound of the same run. The result is the smaller
            bound, and at extremely small deltas the bound of ``in_blocks``.

    Raises:
        PrecisionError: The grid exceeds the limits of memory or time.
    """
    from privproj.composition.dominating_pairs import describe_coarsely
    from privproj.composition.grid import GridCurve, SmallestGridCurve
    from privproj.composition.tails import TailLevelsCurve

    first: GridCurve | PrecisionError
    try:
        first = GridCurve([describe_coarsely(*phase) for phase in phases], step)
        if in_blocks:
            first = SmallestGridCurve([first, GridCurve([describe_coarsely(*phase) for phase in in_blocks], step)])
    except PrecisionError as error:
        first = error
    return TailLevelsCurve(first, in_blocks or phases, step)
