"""A ledger checked as a document: every line as the tool writes it, every word bound to what is recomputed.

A ledger states phases, the number of releases, and perhaps a target. Reading it refuses what is damaged; here its lines
are written again from what they say and compared, and the target is compared with the recomputed epsilon. The hashes
have no key. Whoever holds the file can write another run's ledger, or cut whole lines off its end, and nothing in the
file can show that. What holds here is true of the run that the file describes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from privproj.records.ledger import MARKS, Account, Reading, parse_begun, planned_releases
from privproj.records.run_file import phase_from
from privproj.records.verdict import Verdict

AS_WRITTEN = "every line is as privproj writes it"
"""The claim that no line has a word more, less or otherwise than the writer gives it."""

KEPT = "no phase planned more than the target in force"
"""The claim that the targets of the file were kept."""

WITHIN_PLAN = "no phase made more releases than it planned"
"""The claim that no phase went on after its end, which training never does."""

SECRET = "no noise came from a given seed"
"""The claim that the noise protects at all."""


@dataclass(frozen=True)
class LedgerVerdict(Verdict):
    """What checking a ledger found, and its account."""

    account: Account

    @property
    def missing(self) -> int:
        """The number of releases that were planned and are not there, over all phases that were begun."""
        return self.account.missing


def verify_ledger(content: bytes, path: str) -> LedgerVerdict:
    """Check the bytes of a ledger; ``path`` is for messages.

    Raises :class:`InvalidParameter` for a ledger that is damaged or opens no phase, and whatever computing the epsilon
    of a plan raises.
    """
    reading = parse_begun(content, path)
    account = reading.account
    plans = list(_plans_under_targets(reading))
    claims = {
        AS_WRITTEN: not reading.half_opened and _opened_as_written(reading),
        **({KEPT: all(map(_is_kept, plans))} if plans else {}),
        WITHIN_PLAN: all(made <= planned_releases(entry) for entry, made in account.phases),
        SECRET: not account.insecure,
    }
    return LedgerVerdict(claims, account)


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


def _plans_under_targets(reading: Reading) -> Iterator[Account]:
    """For each target of the file the last plan that it was in force for: all made before, and that phase to its end.

    A later target takes the place of an earlier one, and is about all of the run. That of a filter is about each phase
    when it began, after what was made before.
    """
    target: dict[str, Any] = {}
    for i, entry in enumerate(reading.openings):
        target = entry.get("target") or target
        replaced = i + 1 == len(reading.openings) or "target" in reading.openings[i + 1]
        if target and (replaced or "order" in target):
            yield Account(reading.account.phases[: i + 1], target).to_end


def _is_kept(plan: Account) -> bool:
    """True if the plan meets its target; a target that lacks its epsilon says nothing, one without delta too little."""
    target = plan.target or {}
    return not plan.overspent() if "epsilon" in target and "delta" in target else target.keys() == {"delta"}
