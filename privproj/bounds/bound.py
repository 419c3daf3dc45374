"""The record that makes a theorem a bound: what it is about, what it rests on, how it is evaluated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from privproj.assumptions import KNOWN_PROJECTION
from privproj.curves.profile import Representation
from privproj.mechanisms import Mechanism
from privproj.result import Status
from privproj.runs import NeighbouringRelation

if TYPE_CHECKING:
    from privproj.rigorous.profiles import BallProfile

ALL_RELATIONS = tuple(NeighbouringRelation)
"""Every neighbouring relation, the default of a bound."""

GUARANTEES = (Status.PROVED, Status.CONDITIONAL)
"""The statuses under which a number is a guarantee."""

RANK_PROMISE = "every record changes the layer's gradient by a matrix of rank at most {k}"
"""The promise on the rank of the change by one record."""


@dataclass(frozen=True)
class Baseline:
    """A bound that others are compared with: plainer accounting of the same question.

    ``label`` is what it is called there; ``{k}`` stands for the rank of the change. ``runs`` says for which runs it is
    the baseline: "single" (one release on the whole data set), "composed" (all others), "unsampled" (rate 1) or "any".
    ``split`` is the published split of delta, where the bound has one.
    """

    label: str
    runs: Literal["single", "composed", "unsampled", "any"] = "any"
    split: Literal["even"] | None = None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound on the privacy of one mechanism. The fields, in their order:

    * ``name``, ``mechanism``: what it is called, and the type of mechanism that it is about.
    * ``summary``, ``formula``, ``example``: for its documentation; the example is a command.
    * ``source``: the paper and theorem, or the argument if it is our own.
    * ``representation``: from the mechanism to exactly one representation, a privacy profile or what accounts for runs
      in its own terms.
    * ``proof``: the claim of docs/proofs.md that answers cite, which proves or refutes it; empty where the source is
      enough. Its page lists every claim that it rests on.
    * ``any_projection``: a projection reused over releases does no harm.
    * ``exact``: the value is the truth for the release as stated, where ``attained`` says that the worst pair is
      allowed by all that is promised.
    * ``sees_projection``: it is the truth for the pair (projection, release) only.
    * ``independent_layers``: whether projections of different layers must be independent.
    * ``groups``: False where several records of one person break the promise.
    * ``splits``: delta is divided between two events.
    * ``provable``: from the mechanism and a number of releases to what encloses the profile by balls; more than one
      release only where ``provable_steps``.
    * ``status``: proved, conditional, refuted or asymptotic; ``status_of`` where it depends on the parameters.
    * ``promises_of``: what the data must keep (none: status proved; some: conditional).
    * ``needs``: a sentence when a parameter is missing, else None.
    * ``refuses``: a sentence when the bound does not hold for these parameters, else None.
    * ``notes``: what a reader of the number should know.
    * ``relations``, ``default_relation``: where it holds; which relation is meant where none is given, if not the
      mechanism's.
    * ``reason``: why a refuted or asymptotic bound is no guarantee, and what to use instead.
    * ``baseline``: as what other bounds of the mechanism are compared with it.
    * ``renyi``: the Renyi curve by which the mechanism enters Renyi accountants.
    * ``version``: changes whenever a returned value may change.
    """

    name: str
    mechanism: type[Mechanism]
    summary: str
    formula: str
    source: str
    example: str
    representation: Callable[[Any], Representation]
    proof: str = ""
    any_projection: bool = False
    exact: bool = False
    attained: Callable[[Any], bool] = lambda mechanism: True
    sees_projection: bool = False
    independent_layers: Callable[[Any], bool] = lambda mechanism: False
    groups: bool = True
    splits: bool = False
    provable: "Callable[[Any, int], BallProfile] | None" = None
    provable_steps: bool = False
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
    version: int = 1

    @property
    def citation(self) -> str:
        """The source, and the claim that proves it here."""
        return f"{self.source} (docs/proofs.md, {self.proof})" if self.proof else self.source

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
