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
from privproj.records.ledger import NOT_CHAINED, TARGET_SLACK, Account, Reading, parse_ledger
from privproj.records.run_file import phase_from
from privproj.runs import full_target

AS_WRITTEN = "every line is as privproj writes it"
"""The claim that no line has a word more, less or otherwise than the writer gives it."""

CHAINED = "every line carries the hash of all before it"
"""The claim that the file has no line of an earlier version, without a hash."""

KEPT = "no phase planned more than the target in force"
"""The claim that the targets of the file were kept."""

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
        SECRET: not account.insecure,
    }
    return LedgerVerdict(account, claims)


def _opened_as_written(reading: Reading) -> bool:
    """True if each phase is opened in the very words of the tool, which opens none twice in a row."""
    before: dict[str, Any] = {}
    insecure = False
    for i, entry in enumerate(reading.openings):
        phase = json.loads(json.dumps(phase_from(entry["phase"], {}, f"{reading.path}: phase {i + 1}").as_dict()))
        marks = {key: entry[key] for key in ("target", "insecure") if key in entry}
        again = phase == before and ("insecure" not in marks or insecure)
        if again or (insecure and "insecure" in marks) or json.dumps({"phase": phase, **marks}) != json.dumps(entry):
            return False
        before, insecure = phase, insecure or "insecure" in marks
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
