"""The record that makes a theorem a bound: what it is about, what it rests on, and how it is evaluated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from privproj.assumptions import KNOWN_PROJECTION, WHOLE_GRADIENT_CLIPPED
from privproj.mechanisms import Mechanism
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, Representation
from privproj.result import Status
from privproj.run import Run
from privproj.sampling import NeighbouringRelation

if TYPE_CHECKING:
    from privproj.contrib.certify.profiles import BallProfile
    from privproj.profiles.privacy_profile import LawRow

ALL_RELATIONS = tuple(NeighbouringRelation)
"""Every neighbouring relation; a bound holds under all of them unless its record says otherwise."""

GUARANTEES = (Status.PROVED, Status.CONDITIONAL)
"""The statuses under which a number is a guarantee."""

RANK_PROMISE = "every record changes the layer's gradient by a matrix of rank at most {k}"
"""The promise on the rank of the change that one record makes; ``{k}`` stands for the rank."""


OF_ONE_RECORD: dict[str, Any] = {
    "groups": False,
    "relations": (NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
}
"""Fields of a bound about one record that is there or not, as a group or a replaced record change more than that."""


def _promise_of_rank_one(mechanism: Mechanism) -> tuple[str, ...]:
    """The promise that every change has rank one; none where the shape of the query allows no other."""
    return () if getattr(mechanism, "largest_rank", None) == 1 else (RANK_PROMISE.format(k=1),)


OF_RANK_ONE: dict[str, Any] = {
    **OF_ONE_RECORD,
    "status": Status.CONDITIONAL,
    "promises_of": _promise_of_rank_one,
}
"""Fields of a bound about one record whose change has rank one."""


def in_balls(profile: str, arguments: Callable[[Any, int], tuple[Any, ...]]) -> "Callable[[Any, int], BallProfile]":
    """Return what makes the profile in balls of a mechanism and a number of releases.

    ``profile`` is the name of its class in :mod:`privproj.contrib.certify.profiles`, which is imported where a
    certificate is asked for.
    """

    def ball_profile(mechanism: Any, steps: int) -> "BallProfile":
        from privproj.contrib.certify import profiles

        return vars(profiles)[profile](*arguments(mechanism, steps))

    return ball_profile


@dataclass(frozen=True)
class OverRun:
    """What a bound says where it accounts for a whole run by a function of its own."""

    over_run: Callable[[Run], Curve]
    """From a run to its curve; raises :class:`privproj.Refused` where no theorem covers it."""


@dataclass(frozen=True, eq=False, repr=False)
class Baseline:
    """What a bound is called where others are compared with it, as plainer accounting of the same question.

    * ``label``: its name in the comparison; ``{k}`` stands for the rank of the change.
    * ``runs``: for which runs it is the baseline: "single" (one release on the whole data set), "composed" (all
      others), "unsampled" (rate 1) or "any".
    * ``split``: the published split of delta, where the bound has one.
    """

    label: str
    runs: Literal["single", "composed", "unsampled", "any"] = "any"
    split: Literal["even"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Bound:
    """A theorem about the privacy of one mechanism, as a record.

    The fields, one line each, in their order:

    * ``name``: what the bound is called on the command line and in files.
    * ``mechanism``: the type of mechanism that it is about.
    * ``summary``: what it is, in half a sentence, for tables.
    * ``formula``: its formula in plain text, for its page and for ``privproj bounds NAME``.
    * ``source``: the paper and the theorem, or the argument if it is our own.
    * ``representation``: from the mechanism to a privacy profile of one release, or to an object with ``over_run``.
    * ``proof``: the claim of docs/proofs.md that proves or refutes it; empty where the source is enough.
    * ``holds_for_fixed_projection``: True if a projection may be reused over releases.
    * ``exact``: True if the value is the truth of the release as stated, wherever ``is_attained`` holds.
    * ``is_attained``: True for parameters at which the worst pair of data sets is allowed by all that is promised.
    * ``adversary_sees_projection``: True if the value is the truth only for the pair (projection, release) (C4).
    * ``independent_layers``: True for parameters at which the projections of the layers must be independent (C6).
    * ``groups``: False if several records of one person break the promise.
    * ``of_several``: ``representation`` for a mechanism as several records of a person see it, where that is another
      theorem: their changes of rank one add up to one of any rank.
    * ``splits``: True if delta is divided between two events.
    * ``worst_changes``: from the mechanism to profiles of changes that nothing promised rules out, the mostly worst
      first: no accounting for whoever sees the projections can say less than any of them (C28). None: none is known.
    * ``ball_profile``: from the mechanism and a number of releases to the profile in balls; None: no certificate.
    * ``law_row``: from the mechanism and a ratio ``mu`` of sensitivity to noise to a profile over columns and its row;
      None where these parameters have none. With an array of ratios, entries of the row are arrays. What a bound with
      columns says besides does not depend on the noise.
    * ``certifies_runs``: True if ``ball_profile`` takes more than one release.
    * ``status``: proved, conditional, asymptotic or refuted.
    * ``status_of``: the status as a function of the parameters, where it depends on them.
    * ``promises_of``: what the data must keep, in words; with none the status is proved, with some conditional.
    * ``needs``: a sentence if a parameter is missing, else None.
    * ``refuses``: a sentence if the bound does not hold for these parameters, else None.
    * ``notes``: what a reader of the number should know.
    * ``relations``: the neighbouring relations under which it holds.
    * ``default_relation``: the relation where none is given; None takes that of the mechanism.
    * ``reason``: why a refuted or asymptotic bound is no guarantee, and what to use instead.
    * ``baseline``: how it appears where other bounds are compared with it; None where it does not.
    * ``renyi``: True if it is the Renyi curve by which the mechanism enters Renyi accountants.
    * ``supports_adaptive_clipping``: True if it holds with the count that adapts a clip too, jointly (C31).
    * ``version``: a number that is raised whenever a returned value may change.
    * ``options``: those of its example, where the parameters of the mechanism's own will not do.
    * ``example``: a command that uses it, or for a claim without a number what to use instead.
    """

    name: str
    mechanism: type[Mechanism]
    summary: str
    formula: str
    source: str
    representation: Callable[[Any], Representation]
    proof: str = ""
    holds_for_fixed_projection: bool = False
    exact: bool = False
    is_attained: Callable[[Any], bool] = lambda mechanism: True
    adversary_sees_projection: bool = False
    independent_layers: Callable[[Any], bool] = lambda mechanism: False
    groups: bool = True
    of_several: Callable[[Any], Representation] | None = None
    splits: bool = False
    worst_changes: Callable[[Any], tuple[PrivacyProfile, ...]] | None = None
    ball_profile: "Callable[[Any, int], BallProfile] | None" = None
    law_row: "Callable[[Any, Any], LawRow | None] | None" = None
    certifies_runs: bool = False
    status: Status = Status.PROVED
    status_of: Callable[[Any], Status] | None = None
    promises_of: Callable[[Any], tuple[str, ...]] = lambda mechanism: ()
    needs: Callable[[Any], str | None] = lambda mechanism: None
    refuses: Callable[[Any], str | None] = lambda mechanism: None
    notes: Callable[[Any], tuple[str, ...]] = lambda mechanism: ()
    relations: tuple[NeighbouringRelation, ...] = ALL_RELATIONS
    default_relation: NeighbouringRelation | None = None
    reason: str = ""
    baseline: Baseline | None = None
    renyi: bool = False
    supports_adaptive_clipping: bool = False
    version: int = 1
    options: str = ""
    example: str = ""

    def __post_init__(self) -> None:
        if not self.example:
            pairs = (pair.split("=") for pair in self.mechanism.example.split())
            options = self.options or " ".join(f"--{name.replace('_', '-')} {value}" for name, value in pairs)
            command = f"privproj epsilon {self.mechanism.name} --bound {self.name} {options} --delta 1e-5"
            object.__setattr__(self, "example", command)

    @property
    def citation(self) -> str:
        """The source, and the claim of docs/proofs.md that proves it here."""
        return f"{self.source} (docs/proofs.md, {self.proof})" if self.proof else self.source

    def represent(self, mechanism: Mechanism, *, several: bool = False) -> Representation:
        """What it says of a release, of several records of a person if so, as ``mechanism`` is seen by them."""
        # What can change by a vector alone changes by one whoever moves it.
        is_other = several and self.of_several is not None and getattr(mechanism, "largest_rank", None) != 1
        return (self.of_several if is_other and self.of_several else self.representation)(mechanism)

    def assumes(self, mechanism: type[Mechanism]) -> tuple[str, ...]:
        """What the mechanism must have done, in words; of its projection nothing where any projection will do."""
        of_mechanism = (
            words
            for words in mechanism.assumes
            if not self.holds_for_fixed_projection or words == WHOLE_GRADIENT_CLIPPED
        )
        return (*of_mechanism, *((KNOWN_PROJECTION,) if self.adversary_sees_projection else ()))

    def promises_values(self, mechanism: Mechanism) -> bool:
        """True if something is promised of the values of the query, which under sampling are those of a batch.

        A promise on the rank of the change does not count, since it does not depend on the batch.
        """
        return any(not words.startswith(RANK_PROMISE.split("{")[0]) for words in self.promises_of(mechanism))

    def status_for(self, mechanism: Mechanism) -> Status:
        """The status for these parameters; a guarantee is conditional exactly where a promise on the data is needed."""
        status = self.status_of(mechanism) if self.status_of else self.status
        if status in GUARANTEES:
            return Status.CONDITIONAL if self.promises_of(mechanism) else Status.PROVED
        return status

    def guarantees(self, mechanism: Mechanism) -> bool:
        """True unless the bound is refuted for these parameters, or asymptotic."""
        return (self.status_of(mechanism) if self.status_of else self.status) in GUARANTEES
