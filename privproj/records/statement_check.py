"""A privacy statement checked: written anew from the parameters that it ends with, and compared line by line.

Whatever stands in a statement besides its parameters has to be what the tool writes for them. A number may differ by
what rounding on another machine can do to its last digit. The statement may stand within a larger file, such as a model
card; then only the lines between its marks are checked. A page in HTML has to be the statement and nothing else, since
a style or a script elsewhere on it could change what is shown.

A statement and the ledger of a run are compared once each is checked on its own. They agree where the ledger is that of
the statement's run, or of its beginning, and what the statement claims is no less than what the releases of the ledger
cost. A statement of a plan counts all of its releases, that of a training run those made when it was written. Where the
statement names the SHA-256 of a file, that file is the one it is about, byte for byte.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from privproj.assumptions import PUBLIC_RECORD_COUNT, THIS_LEDGER_ALONE
from privproj.errors import InvalidParameter
from privproj.records.data_file import Verdict, read_json
from privproj.records.ledger import Account, LedgerVerdict
from privproj.records.statement import PARAMETERS, STYLES, Statement, statement_from
from privproj.validation import quoted
from privproj.version import __version__

BEGIN = {"text": "PRIVACY STATEMENT", "markdown": "## Privacy statement"}
"""The line that begins a statement, by style. Contract."""

END = "End of the privacy statement."
"""The line that ends a statement in text and Markdown. Contract."""

ROUNDING_RTOL = 1e-6
"""Relative difference of a computed number, between two machines, that a statement may show by a unit of a last digit.

A number is honest if it is written so for some value that lies at most this far from the recomputed one. Soundness:
what is accepted is at least the recomputed bound less this share of it.
"""

AS_WRITTEN = "every word and number is what privproj writes for these parameters, but for rounding"
"""The claim about all lines."""

VERSION = "it was written by this version of privproj"
"""The claim that no other version wrote it, whose numbers or words may differ."""

CLAIM = re.compile(
    r"epsilon is at most [\d.e+-]+ at delta [\d.e+-]*\d|no finite epsilon at delta [\d.e+-]*\d", re.ASCII
)
"""How the claim of a statement stands in its words, apart from spaces."""


@dataclass(frozen=True)
class _Difference:
    """A line of the file that is not what is written anew: its number, what it says, and what would be said."""

    number: int
    said: str
    expected: str


@dataclass(frozen=True)
class StatementVerdict(Verdict):
    """What checking a statement found: the statement written anew, where it stands in the file, and what differs.

    ``claimed`` are the epsilons that the words of the file name, each with its delta and once.
    """

    statement: Statement
    first: int
    last: int
    lines: int
    claimed: tuple[str, ...]
    differences: tuple[_Difference, ...]

    @property
    def outside(self) -> int:
        """The number of lines of the file that are not part of the statement."""
        return self.lines - (self.last - self.first + 1)


def verify_statement(content: str, path: str, write: Callable[[Statement], str]) -> StatementVerdict:
    """Check the statement in a text; ``write`` renders a statement in its style, ``path`` is for messages.

    Raises :class:`InvalidParameter` where the text does not have one statement with its parameters, and whatever
    computing it raises.
    """
    lines = content.replace("\r\n", "\n").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    places = [i for i, line in enumerate(lines) if line.startswith(PARAMETERS)]
    if len(places) != 1:
        expected = "one privacy statement that ends with its parameters"
        raise InvalidParameter("FILE", path, expected, f"it has {len(places)} lines of parameters")
    given = _parameters(lines[places[0]], path)
    style, version = given.pop("style"), given.pop("privproj")
    first, last = (0, len(lines) - 1) if style == "html" else _marked(lines, places[0], style, path)
    statement = statement_from(given, given.pop("delta"), style, version, given.pop("said", None))
    # The statement with every computed number a little larger and smaller: what rounding can make of its last digits.
    ways = [write(statement.shifted(by)).split("\n") for by in (1.0, 1.0 - ROUNDING_RTOL, 1.0 + ROUNDING_RTOL)]
    found = tuple(
        _Difference(number, said or "", options[0] or "")
        for number, (said, *options) in enumerate(zip_longest(lines[first : last + 1], *ways), first + 1)
        if said is None or None in options or not _is_one_of(said, options)
    )
    claims = {AS_WRITTEN: not found, VERSION: version == __version__}
    claimed = tuple(dict.fromkeys(CLAIM.findall(" ".join(" ".join(lines[first : last + 1]).split()))))
    return StatementVerdict(claims, statement, first + 1, last + 1, len(lines), claimed, found)


def _parameters(line: str, path: str) -> dict[str, Any]:
    """The line of parameters as data: every key known, none missing, and what is not computed from checked."""
    given = read_json(line, "FILE", path, "parameters as `privproj report` writes them")
    about = [key for key in ("question", "run", "ledger") if key in given]
    known = ["privproj", "style", "delta", *(["said"] if "said" in given else []), *about]
    tables = [given[key] for key in known[3:]]
    if len(about) != 1 or list(given) != known or not all(table and isinstance(table, dict) for table in tables):
        expected = "parameters with the keys privproj, style, delta, perhaps said, and then question, run or ledger"
        raise InvalidParameter("FILE", path, expected, f"they have {quoted(list(given))}")
    if given["style"] not in STYLES:
        raise InvalidParameter("style", quoted(given["style"]), "one of the styles " + ", ".join(STYLES))
    if not isinstance(given["privproj"], str) or not re.fullmatch(r"[0-9][0-9A-Za-z.+-]{0,40}", given["privproj"]):
        raise InvalidParameter("privproj", quoted(given["privproj"]), "a version")
    return given


def _marked(lines: list[str], place: int, style: str, path: str) -> tuple[int, int]:
    """The first and the last line of the statement around its parameters, by its marks, of which there is one each."""
    begins = [i for i, line in enumerate(lines) if line == BEGIN[style]]
    ends = [i for i, line in enumerate(lines) if line == END]
    if len(begins) != 1 or len(ends) != 1 or not begins[0] < place < ends[0]:
        raise InvalidParameter(
            "FILE", path, f"one line {BEGIN[style]!r} before the parameters and one line {END!r} after them"
        )
    return begins[0], ends[0]


def _is_one_of(said: str, options: list[str]) -> bool:
    """True if every word of a line is the word that stands there in one of the lines."""
    columns = [option.split(" ") for option in (said, *options)]
    alike = len({len(words) for words in columns}) == 1
    return said in options or (alike and all(word in among for word, *among in zip(*columns, strict=True)))


# --- a statement and the ledger of its run ------------------------------------------------------------

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
