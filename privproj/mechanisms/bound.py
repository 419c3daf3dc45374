"""Define bounds: theorems about the privacy of a mechanism."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from privproj.assumptions import Assumption, DataAssumption, Requirement
from privproj.mechanisms import Mechanism
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, Representation
from privproj.result import Status
from privproj.run import Run
from privproj.sampling import NeighboringRelation

ALL_RELATIONS = tuple(NeighboringRelation)

GUARANTEES = (Status.PROVED, Status.CONDITIONAL)  # statuses under which a number is a guarantee

# fields of bounds that hold for one record under add-remove and zero-out, but not for a group or under replace
OF_ONE_RECORD: dict[str, Any] = {
    "of_group": None,
    "relations": (NeighboringRelation.ADD_REMOVE, NeighboringRelation.ZERO_OUT),
}


def _assumes_rank_one(mechanism: Mechanism) -> tuple[Assumption, ...]:
    """Return the assumption that neighboring sums differ by a matrix of rank one.

    The tuple is empty if the shape of the matrix rules out a larger rank.
    """
    return () if getattr(mechanism, "largest_rank", None) == 1 else (DataAssumption.DIFFERENCE_RANK.at(k=1),)


# fields of bounds that hold under add-remove and zero-out if the difference has rank one; a group has a larger rank
OF_RANK_ONE: dict[str, Any] = {
    "relations": OF_ONE_RECORD["relations"],
    "status": Status.CONDITIONAL,
    "assumptions": _assumes_rank_one,
}

Support = Literal["split", "tau", "adaptive-clipping", "fixed-projection", "shared-projection", "one-vector"]


@dataclass(frozen=True)
class OverRun:
    """A bound on the privacy of a whole training run, not of one release.

    ``over_run`` maps a run to its privacy curve, or raises :class:`privproj.UnsupportedError`.
    """

    over_run: Callable[[Run], Curve]


class Flaw(NamedTuple):
    """The reason why a refuted or asymptotic bound is not a guarantee.

    Attributes:
        reason: The counterexample or the unspecified constant, and which bound to use instead.
        affects: A function of a mechanism that returns False if the bound nevertheless holds at its parameters.
    """

    reason: str
    affects: Callable[[Any], bool] = lambda mechanism: True


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Bound:
    """A theorem about the privacy of one mechanism.

    Attributes:
        name: The name on the command line and in files.
        mechanism: The class of the mechanism.
        summary: A description of the bound, as a noun phrase.
        formula: The formula in plain text.
        source: The paper and the theorem, or the argument if the theorem is our own.
        representation: A function of the mechanism that returns the bound as a privacy profile or a Renyi curve of one
            release, or as an :class:`OverRun`.
        proof: The claim of docs/proofs.md that proves or refutes the theorem; empty if the source is enough.
        of_group: Like ``representation``, for a user with several records: a function of ``mechanism.for_group(size)``.
            "same" means that ``representation`` also holds for groups. None means that the theorem does not cover
            groups.
        exact: Whether two neighboring datasets attain the bound: True, False, or a function of the mechanism that
            returns one of them. "given-projection" means that the bound is exact for an adversary who also observes the
            projections (C4).
        worst_differences: A function of the mechanism that returns privacy profiles. Each is the profile for one
            difference between neighboring sums that the assumptions allow. So each is a lower bound on delta if the
            adversary observes the projections (C28). None means that no such profile is known.
        status: Proved, conditional, asymptotic or refuted.
        flaw: Why a refuted or asymptotic bound is not a guarantee.
        assumptions: A function of the mechanism that returns the assumptions on the data. A bound with an assumption is
            conditional, otherwise proved.
        check: A function of the mechanism that raises :class:`InvalidParameterError` or :class:`UnsupportedError` if
            the theorem does not cover its parameters.
        relations: The neighboring relations under which the theorem holds.
        supports: Further cases that the theorem covers. "split": the user may set how delta is divided between two bad
            events of the proof. "tau": the user may set the free parameter ``tau`` of the bound. "adaptive-clipping":
            the release may include the noisy count (C31). "fixed-projection": one projection may be used for all
            releases. "shared-projection": the projections of the layers may be dependent (C6). "one-vector" is a
            restriction: the theorem covers sketches of one vector only (C14).
        version: An integer that increases whenever a value of the bound may change.
        example: An example command that begins with ``privproj``, or only the options of a command that evaluates the
            bound. The default is the example of the mechanism.
    """

    name: str
    mechanism: type[Mechanism]
    summary: str
    formula: str
    source: str
    representation: Callable[[Any], Representation]
    proof: str = ""
    of_group: Callable[[Any], Representation] | Literal["same"] | None = "same"
    exact: bool | Literal["given-projection"] | Callable[[Any], bool] = False
    worst_differences: Callable[[Any], tuple[PrivacyProfile, ...]] | None = None  # usually the largest first
    status: Status = Status.PROVED
    flaw: Flaw | None = None
    assumptions: Callable[[Any], tuple[Assumption, ...]] = lambda mechanism: ()
    check: Callable[[Any], None] = lambda mechanism: None
    relations: tuple[NeighboringRelation, ...] = ALL_RELATIONS
    supports: tuple[Support, ...] = ()
    version: int = 1
    example: str = ""

    def __post_init__(self) -> None:
        if not self.example.startswith("privproj "):
            pairs = (pair.split("=") for pair in self.mechanism.example.split())
            options = self.example or " ".join(f"--{name.replace('_', '-')} {value}" for name, value in pairs)
            command = f"privproj epsilon {self.mechanism.name} --bound {self.name} {options} --delta 1e-5"
            object.__setattr__(self, "example", command)

    @property
    def key(self) -> tuple[str, str]:
        """The pair of the name of the mechanism and the name of the bound."""
        return self.mechanism.name, self.name

    @property
    def citation(self) -> str:
        """The source of the theorem, with the claim of docs/proofs.md if there is one."""
        return f"{self.source} (docs/proofs.md, {self.proof})" if self.proof else self.source

    @property
    def reason(self) -> str:
        """The reason why the bound is not a guarantee; empty if it is one."""
        return self.flaw.reason if self.flaw else ""

    @property
    def default_relation(self) -> str | None:
        """The neighboring relation of a query that does not name one.

        None means the default of the sampling scheme.
        """
        default = self.mechanism.default_relation
        # zero-out, because the number of records is public under zero-out, as it is under replace
        return default if default is None or default in self.relations else NeighboringRelation.ZERO_OUT

    def is_exact(self, mechanism: Mechanism) -> bool:
        """Return whether the bound is exact at these parameters.

        An exact bound is attained by two neighboring datasets, for an adversary who observes the release only.
        """
        return self.exact(mechanism) if callable(self.exact) else self.exact is True

    def requirements(self, mechanism: type[Mechanism]) -> tuple[str, ...]:
        """Return the requirements of the bound on the training program."""
        # A bound that holds for a fixed projection does not require fresh projections.
        of_mechanism = (
            requirement
            for requirement in mechanism.requirements
            if "fixed-projection" not in self.supports or requirement == Requirement.FULL_GRADIENT_CLIPPING
        )
        of_projection = (Requirement.OBSERVED_PROJECTION,) if self.exact == "given-projection" else ()
        of_vector = (Requirement.SKETCHED_VECTOR,) if "one-vector" in self.supports else ()
        return (*of_mechanism, *of_projection, *of_vector)

    def guarantees(self, mechanism: Mechanism) -> bool:
        """Return whether the bound is a guarantee at these parameters.

        The guarantee may depend on assumptions on the data.
        """
        return self.flaw is None or not self.flaw.affects(mechanism)
