"""A privacy statement and the ledger of a run compared: the statement covers every release that the ledger has.

Each is checked on its own first. They agree where the ledger is that of the statement's run, or of its beginning, and
what the statement claims is no less than what the releases of the ledger cost. A statement of a plan counts all of its
releases, that of a training run those made when it was written. Where the statement names the SHA-256 of a file, that
file is the one it is about, byte for byte.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from privproj.assumptions import PUBLIC_RECORD_COUNT, THIS_LEDGER_ALONE
from privproj.records.ledger import Account
from privproj.records.ledger_check import LedgerVerdict
from privproj.records.statement_check import ROUNDING_RTOL, StatementVerdict
from privproj.records.verdict import Verdict

STATEMENT_HOLDS = "the statement alone holds"
"""The claim that checking the statement by itself found nothing wrong."""

LEDGER_HOLDS = "the ledger alone is as privproj writes it"
"""The claim that checking the ledger by itself found nothing wrong."""

SAME_RUN = "each phase of the ledger is that phase of the statement: mechanism, bound, noise, plan, sampling, relation"
"""The claim that the ledger is of the statement's run, in the order of its phases; names of phases are free."""

COUNTED = "the statement counts every release of the ledger"
"""The claim that no phase released more than the statement says."""

COVERED = "the statement's epsilon is no less than that of the ledger's releases, at the statement's delta"
"""The claim that the number covers what was released, by the ledger's own accounting."""

SAME_DELTA = "the statement's delta is no larger than that of the ledger's target"
"""The claim that the statement is about the target that the run set out to keep."""

SAME_FOUNDATION = "the statement names what the ledger's number rests on: promises, assumptions"
"""The claim that the statement leaves out nothing that the number rests on.

It need not name :data:`OF_THE_LEDGER`.
"""

SAME_FILE = "the {name} is the file whose SHA-256 the statement names"
"""The claim about each file that was given and has to be the one that the statement means."""

OF_THE_LEDGER = (PUBLIC_RECORD_COUNT, THIS_LEDGER_ALONE)
"""Assumptions of a ledger that a statement may leave out.

A statement of a plan gives rate and steps as constants, which is the other half of the first sentence, and it is about
one plan, as the second one says of one ledger.
"""

NOT_COMPARED = ("name", "public_size", "planned")
"""Keys of a phase that are no part of what was released: a label, an assumption, and what is still to come."""


@dataclass(frozen=True)
class AgreementVerdict(Verdict):
    """What comparing found: every claim about the two files, the verdicts on both, and how their phases differ."""

    statement: StatementVerdict
    ledger: LedgerVerdict
    differences: tuple[str, ...]

    @property
    def planned(self) -> int:
        """The number of releases that the ledger would have at the end of its plan and of the statement's."""
        return max(self.ledger.account.releases_planned, self.statement.statement.account.spent)

    @property
    def missing(self) -> int:
        """The number of releases that were planned and are not in the ledger."""
        return self.planned - self.ledger.account.spent


def compare_with_ledger(
    statement: StatementVerdict, ledger: LedgerVerdict, digests: Mapping[str, str] | None = None
) -> AgreementVerdict:
    """Compare a statement and a ledger that were checked; raises whatever computing the ledger's epsilon raises.

    ``digests`` are the SHA-256 of the ledger and of a checkpoint, where there is one. A statement may leave out the
    ledger's, as that of a plan does, but not that of a checkpoint which it is compared with.
    """
    stated, account = statement.statement.account, ledger.account
    differences = tuple(_differences(account, stated))
    claimed = statement.statement.result
    target = account.target or {}
    made, said = _made(account), _made(stated)
    fewer = all(ours <= theirs for (_, ours), (_, theirs) in zip(made, said, strict=False))
    claims = {
        STATEMENT_HOLDS: statement.holds,
        LEDGER_HOLDS: ledger.holds,
        SAME_RUN: not differences,
        COUNTED: len(made) <= len(said) and fewer,
    }
    if account.spent and claimed.usable:
        # epsilon of the ledger <= that of the statement, but for the rounding of numbers that are computed twice.
        found = account.epsilon(float(claimed.delta or 0.0))
        most = float(claimed.value or 0.0) * (1 + ROUNDING_RTOL)
        claims[COVERED] = found.usable and float(found.value or 0.0) <= most
        rests_on = {*claimed.promises, *claimed.assumes, *OF_THE_LEDGER}
        claims[SAME_FOUNDATION] = {*found.promises, *found.assumes} <= rests_on
    if "delta" in target:
        claims[SAME_DELTA] = float(claimed.delta or 0.0) <= float(target["delta"])
    named = statement.statement.said
    for name, digest in (digests or {}).items():
        if name in named or name != "ledger":
            claims[SAME_FILE.format(name=name)] = named.get(name) == digest
    return AgreementVerdict(claims, statement, ledger, differences)


def _made(account: Account) -> list[tuple[dict[str, Any], int]]:
    """The phases with a release as a file has them, and how many."""
    return [(json.loads(json.dumps(entry)), made) for entry, made in account.phases if made]


def _differences(account: Account, stated: Account) -> Iterator[str]:
    """Where the ledger is not that of the statement's run, in words."""
    filters = [dict(one.target or {}) if one.filtered else None for one in (account, stated)]
    if filters[0] != filters[1]:
        yield f"filter: {filters[0]} in the ledger, {filters[1]} in the statement"
    said = _made(stated)
    for i, (entry, _) in enumerate(_made(account)):
        if i >= len(said):
            yield f"phase {i + 1}: in the ledger alone"
        else:
            yield from _phase_differences(f"phase {i + 1}", entry, said[i][0])


def _phase_differences(name: str, entry: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterator[str]:
    """How a phase of the ledger differs from that of the statement, key by key."""
    for key in dict.fromkeys((*entry, *stated)):
        one, other = entry.get(key, "nothing"), stated.get(key, "nothing")
        if key not in NOT_COMPARED and one != other:
            yield f"{name}: {key} {one} in the ledger, {other} in the statement"
