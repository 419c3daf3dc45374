"""A ledger checked as a document: every line as the tool writes it, every word bound to what is recomputed.

A ledger states phases, the number of releases, and perhaps a target. Reading it refuses what is damaged; here its lines
are written again from what they say and compared, and the target is compared with the recomputed epsilon. The hashes
have no key. Whoever holds the file can write another run's ledger, or cut whole lines off its end, and nothing in the
file can show that. What holds here is true of the run that the file describes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from privproj.curves.inversion import meets
from privproj.errors import InvalidParameter, Refused
from privproj.records.ledger import MARKS, NOT_CHAINED, TARGET_SLACK, Account, Reading, parse_ledger, planned_releases
from privproj.records.run_file import phase_from
from privproj.runs.targets import full_target

AS_WRITTEN = "every line is as privproj writes it"
"""The claim that no line has a word more, less or otherwise than the writer gives it."""

AS_FAR_AS_IT_GOES = "consistent as far as it goes"
"""The verdict on a file in which nothing is wrong and planned releases are missing. Contract."""

CHAINED = "every line carries the hash of all before it"
"""The claim that the file has no line of an earlier version, without a hash."""

KEPT = "no phase planned more than the target in force"
"""The claim that the targets of the file were kept."""

WITHIN_PLAN = "no phase made more releases than it planned"
"""The claim that no phase went on after its end, which training never does."""

SECRET = "no noise came from a given seed"
"""The claim that the noise protects at all."""


@dataclass(frozen=True)
class LedgerVerdict:
    """What checking a ledger found: its account, and every claim of it in words with whether it holds."""

    account: Account
    claims: dict[str, bool]

    @property
    def holds(self) -> bool:
        """True if every claim of the ledger holds."""
        return all(self.claims.values())

    @property
    def word(self) -> str:
        """The verdict in words, of which only "holds" is about all planned releases."""
        return "fails" if not self.holds else AS_FAR_AS_IT_GOES if self.account.missing else "holds"


def verify_ledger(content: bytes, path: str) -> LedgerVerdict:
    """Check the bytes of a ledger; ``path`` is for messages.

    Raises :class:`InvalidParameter` for a ledger that is damaged or opens no phase, and whatever computing the epsilon
    of a plan raises.
    """
    reading = parse_ledger(content, path)
    account = reading.account
    if not account.phases:
        raise InvalidParameter("ledger", path, "a ledger with a phase; this run was stopped before it began")
    targets = list(_targets_with_plans(reading))
    claims = {
        AS_WRITTEN: not reading.half_openings and _opened_as_written(reading),
        CHAINED: NOT_CHAINED not in account.notes,
        **({KEPT: all(_is_kept(plan, target) for plan, target in targets)} if targets else {}),
        WITHIN_PLAN: all(made <= planned_releases(entry) for entry, made in account.phases),
        SECRET: not account.insecure,
    }
    return LedgerVerdict(account, claims)


def _opened_as_written(reading: Reading) -> bool:
    """True if each phase is opened in the very words of the tool, which opens none again before it is made."""
    before: dict[str, Any] = {}
    said: set[str] = set()
    for i, entry in enumerate(reading.openings):
        phase = json.loads(json.dumps(phase_from(entry["phase"], {}, f"{reading.path}: phase {i + 1}").as_dict()))
        marks = {mark for mark in MARKS if mark in entry}
        own = {"phase": phase, **{key: entry[key] for key in ("target", *MARKS) if key in entry}}
        again = phase == before and Account(reading.account.phases[:i]).left > 0 and not marks
        if again or marks & said or json.dumps(own) != json.dumps(entry):
            return False
        before, said = phase, said | marks
    return True


def _targets_with_plans(reading: Reading) -> Iterator[tuple[Account, dict[str, Any]]]:
    """Each target of the file with the last plan that it was in force for: all made before, and that phase to its end.

    A later target takes the place of an earlier one, and is about all of the run. That of a filter is about each phase
    when it began, after what was made before.
    """
    target: dict[str, Any] = {}
    for i, entry in enumerate(reading.openings):
        target = entry.get("target") or target
        if "order" in target:
            yield Account(reading.account.phases[: i + 1], target).planned, target
            continue
        replaced = i + 1 == len(reading.openings) or "target" in reading.openings[i + 1]
        if target and replaced:
            phases = reading.account.phases[: i + 1]
            last = Account(phases[i:]).planned.phases
            yield Account((*phases[:i], *last)), target


def _is_kept(plan: Account, target: dict[str, Any]) -> bool:
    """True if the plan meets its target; a target that lacks its epsilon or its delta cannot be checked, so False."""
    if not {"epsilon", "delta"} <= target.keys():
        return target.keys() == {"delta"}
    if plan.filtered:
        try:
            plan.filter()
        except Refused:
            return False
        return True
    named = full_target(target["epsilon"], target["delta"], None, zero=False)
    return meets(plan.curve(), replace(named, epsilon=named.epsilon * (1.0 + TARGET_SLACK)))
