"""Our releases as dp-accounting events, and accountants that take them together with its own.

``ReleaseDpEvent(M2(...))`` is one release; it may stand alone or inside ``ComposedDpEvent``, ``SelfComposedDpEvent``
and ``PoissonSampledDpEvent``. dp-accounting's composition is not certified (see :mod:`privproj.dp_composer`): for a
number with a proved error bound compose a :class:`privproj.schedule.Schedule`.
"""

import attrs
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from privproj import pld
from privproj.accountant import Question, question_of
from privproj.bounds import find
from privproj.errors import InvalidParameter, PrivprojError, Refused
from privproj.lattice import Pair, outline
from privproj.mechanisms import Mechanism
from privproj.profile import PrivacyProfile
from privproj.renyi import RenyiCurve
from privproj.runs import RunOptions

Problem = privacy_accountant.PrivacyAccountant.CompositionErrorDetails
Relation = privacy_accountant.NeighboringRelation
RELATIONS = {Relation.ADD_OR_REMOVE_ONE: "add-remove", Relation.REPLACE_ONE: "replace"}


@attrs.frozen
class ReleaseDpEvent(dp_event.DpEvent):
    """One release of a mechanism of this package, accounted by ``bound`` (None: the default of the accountant)."""

    mechanism: Mechanism
    bound: str | None = None


def unsampled(event: dp_event.DpEvent) -> tuple[ReleaseDpEvent | None, float]:
    """``(our release, sampling rate)``; ``(None, 1)`` for any other event."""
    if isinstance(event, ReleaseDpEvent):
        return event, 1.0
    if isinstance(event, dp_event.PoissonSampledDpEvent) and isinstance(event.event, ReleaseDpEvent):
        return event.event, float(event.sampling_probability)
    return None, 1.0


def question(event: ReleaseDpEvent, rate: float, relation: Relation, bound: str | None, count: int = 1) -> Question:
    """The question that ``count`` such events put."""
    if relation not in RELATIONS:
        raise InvalidParameter("neighboring_relation", relation, "add-or-remove-one or replace-one")
    found = find(type(event.mechanism), event.bound or bound)
    run: RunOptions = {"steps": count, "sampling_rate": rate, "relation": RELATIONS[relation]}  # pyright: ignore
    put = question_of(event.mechanism, found, run)
    if put.reuses_projection:
        raise Refused(
            f"{found.name} needs a fresh projection for each release, and an accountant cannot see the others"
        )
    return put


class ProjectionPLDAccountant(PLDAccountant):
    """dp-accounting's PLD accountant that also takes :class:`ReleaseDpEvent`, alone or Poisson sampled."""

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Problem | None:
        ours, rate = unsampled(event)
        if ours is None:
            return super()._maybe_compose(event, count, do_compose)
        try:
            found = question(ours, rate, self.neighboring_relation, None)
            release, run = found.release()
            if not isinstance(release, PrivacyProfile) or (run.sampling_rate < 1.0 and not release.amplifies):
                return Problem(event, f"{found.bound.name} has no privacy profile to compose here")
            if do_compose:
                orders = pld.both_orders([(release, run)], [outline(release, run)], self._value_discretization_interval)
                parts = [as_pmf(order[0][0]) for order, _ in orders]
                self._pld = self._pld.compose(
                    privacy_loss_distribution.PrivacyLossDistribution(*parts).self_compose(count)
                )
        except PrivprojError as error:
            return Problem(event, str(error))
        return None


def as_pmf(pair: Pair) -> pld_pmf.PLDPmf:
    """A dominating pair as dp-accounting holds it."""
    cells = dict(zip(pair.cells.tolist(), pair.masses.tolist(), strict=True))
    return pld_pmf.create_pmf(cells, pair.step, pair.at_infinity, pessimistic_estimate=True).to_dense_pmf()


class ProjectionRdpAccountant(RdpAccountant):
    """dp-accounting's Renyi accountant that also takes :class:`ReleaseDpEvent` of mechanisms with a Renyi curve."""

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Problem | None:
        ours, rate = unsampled(event)
        if ours is None:
            return super()._maybe_compose(event, count, do_compose)
        try:
            found = question(ours, rate, self.neighboring_relation, RENYI.get(ours.mechanism.name), count)
            form, run = found.release()
            if not isinstance(form, RenyiCurve):
                return Problem(event, f"{found.bound.name} has no Renyi curve; use ProjectionPLDAccountant")
            curve = form.over(run)
            if do_compose:
                self._rdp = self._rdp + [self.at(curve, float(order)) for order in self._orders]
        except PrivprojError as error:
            return Problem(event, str(error))
        return None

    @staticmethod
    def at(curve: RenyiCurve, order: float) -> float:
        """The divergence at this order, ``inf`` where the curve does not hold."""
        whole = not curve.integer_orders or order.is_integer()
        return curve.divergence(order) if whole and curve.low <= order < curve.high and order > 1.0 else float("inf")


RENYI = {"m2": "mixture-rdp", "gaussian": "rdp", "sketch": "rdp-tight"}
"""The bound with a Renyi curve of each mechanism."""
