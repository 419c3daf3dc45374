"""The record that makes a theorem a bound: what it is about, what it rests on, how it is evaluated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from privproj.assumptions import KNOWN_PROJECTION
from privproj.mechanisms import Mechanism
from privproj.profile import Curve, PrivacyProfile
from privproj.relations import NeighbouringRelation
from privproj.result import Status
from privproj.runs import Run

if TYPE_CHECKING:
    from privproj.rigorous.profiles import Profile

ALL_RELATIONS = tuple(NeighbouringRelation)
GUARANTEES = (Status.PROVED, Status.CONDITIONAL)
RANK_PROMISE = "every record changes the layer's gradient by a matrix of rank at most {k}"


class RunForm(Protocol):
    """A bound that accounts for a whole run in its own terms."""

    def over(self, run: Run) -> Curve:
        """The curve of the run; raises :class:`privproj.Refused` where there is no theorem for it."""
        ...


Form = PrivacyProfile | RunForm


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound on the privacy of one mechanism.

    ``form`` maps the mechanism to exactly one representation: a privacy profile, or what accounts for runs in its own
    terms (a Renyi or concentrated curve, an ``(eps, delta)`` rule, a good event). ``promises_of`` returns what the data
    must keep (none: status proved; some: conditional). ``needs`` returns a sentence when a parameter is missing,
    ``refuses`` one when the bound does not hold, else None. ``any_projection``: a projection reused over releases does
    no harm. ``exact``: the value is the truth for the release as stated, where ``attained`` says that the worst pair is
    allowed by all that is promised. ``sees_projection``: it is the truth for the pair (projection, release) only.
    ``independent_layers``: projections of different layers must be independent. ``reason`` says why a refuted or
    asymptotic bound is no guarantee, and what to use instead; ``status_of`` gives the status where it depends on the
    parameters; ``default_relation`` is the relation where none is given, if not the mechanism's. ``groups`` is False
    where several records of one person break the promise; ``splits``: delta is divided between two events. ``provable``
    maps the mechanism and a number of releases to what encloses the profile by balls; more than one release only where
    ``provable_steps``. ``version`` changes whenever a returned value may change.
    """

    name: str
    mechanism: type[Mechanism]
    summary: str
    formula: str
    source: str
    example: str
    form: Callable[[Any], Form]
    any_projection: bool = False
    exact: bool = False
    attained: Callable[[Any], bool] = lambda mechanism: True
    sees_projection: bool = False
    independent_layers: Callable[[Any], bool] = lambda mechanism: False
    groups: bool = True
    splits: bool = False
    provable: "Callable[[Any, int], Profile] | None" = None
    provable_steps: bool = False
    status: Status = Status.PROVED
    promises_of: Callable[[Any], tuple[str, ...]] = lambda mechanism: ()
    needs: Callable[[Any], str | None] = lambda mechanism: None
    refuses: Callable[[Any], str | None] = lambda mechanism: None
    notes: Callable[[Any], tuple[str, ...]] = lambda mechanism: ()
    relations: tuple[NeighbouringRelation, ...] = ALL_RELATIONS
    default_relation: NeighbouringRelation | None = None
    reason: str = ""
    status_of: Callable[[Any], Status] | None = None
    version: int = 1

    def assumes(self, mechanism: type[Mechanism]) -> tuple[str, ...]:
        """What the mechanism must have done; nothing of its projection where any projection will do."""
        known = (KNOWN_PROJECTION,) if self.sees_projection else ()
        return known if self.any_projection else (*mechanism.assumes, *known)

    def promises_values(self, mechanism: Mechanism) -> bool:
        """True if something is promised of query values, which under sampling are those of a batch.

        The rank of the change by one record is not: it does not depend on the batch.
        """
        return any(not words.startswith(RANK_PROMISE.split("{")[0]) for words in self.promises_of(mechanism))

    def status_for(self, mechanism: Mechanism) -> Status:
        """The status for these parameters: conditional exactly where a promise on the data is needed."""
        status = self.status_of(mechanism) if self.status_of else self.status
        if status in GUARANTEES:
            return Status.CONDITIONAL if self.promises_of(mechanism) else Status.PROVED
        return status

    def guarantees(self, mechanism: Mechanism) -> bool:
        """True unless the bound is refuted for these parameters, or asymptotic with a constant left open."""
        return (self.status_of(mechanism) if self.status_of else self.status) in GUARANTEES

    @property
    def guarantee(self) -> bool:
        """True unless the bound is refuted or asymptotic for some parameters."""
        return self.status in GUARANTEES
