"""Let a privacy filter enforce the target of a ledger (C35: filters).

A ledger lists the releases of a training run. Its target is an epsilon, a delta and a Renyi order.
"""

from typing import Any

from privproj.assumptions import Requirement
from privproj.contrib.filters.filter import Filter
from privproj.result import round_outward
from privproj.run import percent


class LedgerFilter(Filter):
    """A privacy filter that enforces the target of a ledger.

    It implements :class:`privproj.io.ledger.Budget`.
    """

    requirements = Requirement.FIXED_FILTER
    report = "the epsilon of the whole budget of the filter, whenever and for whatever reason the run stops"

    def summary(self) -> dict[str, Any]:
        """Return the fields that ``privproj ledger`` adds to its JSON output."""
        return {"filter": self.parameters()}

    def labels(self) -> dict[str, str]:
        """Return the lines that ``privproj ledger`` adds to its text, by label."""
        return {"filter": filter_text(self)}


def filter_text(budget: Filter) -> str:
    """Return the order, the budget and the spent share of a filter, as text."""
    order, total = str(budget.order).removesuffix(".0"), round_outward(budget.budget, up=False)
    return f"Renyi divergence at most {total} at order {order}; {percent(budget.spent / budget.budget)} of it is spent"
