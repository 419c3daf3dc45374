"""Edits of a saved document (values, keys, lines and characters), with a recomputed hash chain."""

import copy
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from privproj_cli.main import exit_code

from privproj.io.files import INCOMPLETE

TWINS = {"a": "\u0430", "e": "\u0435", "o": "\u043e", "p": "\u0440", "0": "\u0660", "1": "\uff11", "-": "\u2010"}
"""Letters that look like others."""

TEXTS = [
    "", " ", "proved", "exact", "upper bound", "add-remove", "replace", "zero-out", "gaussian", "analytic", "m2",
    "rank-free", "poisson", "1e-5", "0", "nan", "Infinity", "\u200b", "\u202eproved", "x\nproved", "\ud800",
]  # fmt: skip
"""Words that some place of a document would like."""

KEYS = ["steps", "dim", "split", "planned", "public_size", "group_size", "discretization", "batches"]
"""Keys that mean something somewhere."""

DIGITS = [
    "1e400",
    "NaN",
    "-0.0",
    "0.10000000000000000001",
    "9" * 400,
    "1E+2",
    "0x10",
    "1_0",
    "01",
    "+1",
    "1e-400",
    ".5",
]
"""Numbers that no writer of doubles writes; put into the text of a document."""


def chained(entries):
    """The lines of a ledger with these entries, each with the hash that the format asks for, by other code."""
    return chained_text(json.dumps(entry) for entry in entries)


def chained_text(lines):
    """The same of lines in other words than the writer's: an object has its hash behind what it says."""
    content = b""
    for line in lines:
        arguments = line.encode("utf-8", "surrogatepass")
        chain = b'"chain": "%b"}' % sha256(content + arguments).hexdigest()[:32].encode()
        join = b"" if arguments == b"{}" else b", "
        content += (arguments[:-1] + join + chain if arguments[:1] == b"{" else arguments) + b"\n"
    return content


def entries_of(content):
    """The lines of a ledger as data, without their hashes."""
    lines = [json.loads(line) for line in content.splitlines()]
    return [{key: value for key, value in line.items() if key != "chain"} for line in lines]


def places(value, path=()):
    """The path of every value within a JSON value, the outer ones too."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def value_at(value, path):
    for key in path:
        value = value[key]
    return value


def others(draw, value):
    """Return another value to replace this one."""
    if isinstance(value, bool) or value is None:
        return draw.choice([not value, None, 0, 1, "true", 0.0])
    if isinstance(value, int | float):
        near = [math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
        grown = [value * 2, value / 2, value * (1 + 1e-9), value * (1 - 1e-9), value * (1 - 1e-5), value + 1, value - 1]
        kinds = [-value, float(value), str(value), [value], {"value": value}, True, None, 0, 1e300, 10**19]
        whole = [int(value)] if math.isfinite(value) else []
        return draw.choice([*near, *grown, *grown, *kinds, *whole])
    if isinstance(value, str):
        swapped = "".join(TWINS.get(c, c) if draw.random() < 0.3 else c for c in value)
        digits = [c for c in value if c in "123456789"]
        lower = value.replace(draw.choice(digits), draw.choice("0123456789")) if digits else value.title()
        return draw.choice(
            [lower, lower, swapped, value + " ", value.upper(), value + "\u200b", draw.choice(TEXTS), None]
        )
    if isinstance(value, list):
        return draw.choice(
            [value[::-1], value + value[:1], value[1:], value[:-1], [], [*value, draw.choice(TEXTS)], {}]
        )
    return draw.choice([{}, [value], None, dict(reversed(value.items())), {**value, draw.choice(TEXTS): 1}])


def edited(draw, value):
    """A JSON value with one or two places of it changed, removed, added, renamed or swapped."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 1, 2])):
        inner = [path for path in places(value) if path]
        if not inner:
            return value
        path = draw.choice(inner)
        holder, key = value_at(value, path[:-1]), path[-1]
        action = draw.random()
        if action < 0.72:
            holder[key] = others(draw, holder[key])
        elif action < 0.80:
            other = draw.choice(inner)
            holder[key] = copy.deepcopy(value_at(value, other))
        elif action < 0.87:
            del holder[key]
        elif isinstance(holder, dict):
            name = draw.choice(
                [*TEXTS, "steps", "dim", "split", "planned", "public_size", "group_size", "discretization"]
            )
            name = name if action < 0.94 else "".join(TWINS.get(c, c) for c in str(key))
            holder[name] = holder.pop(key) if draw.random() < 0.5 else draw.choice([1, True, 0.5, "even", "replace"])
    return value


def scratched(draw, text):
    """A text with one change of a writer who sees only letters and lines."""
    lines, at = text.split("\n"), draw.randrange(len(text))
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    digits = [k for k, c in enumerate(text) if c.isdigit()]
    action = draw.randrange(12)
    if action < 4 and digits:
        at = draw.choice(digits)
        return text[:at] + draw.choice("0123456789") + text[at + 1 :]
    if action == 4 and digits:
        at = draw.choice(digits)
        return text[:at] + draw.choice(DIGITS) + text[at + 1 :]
    if action == 5:
        return text[:at] + TWINS.get(text[at], draw.choice(' \t\u00a0\u200b\r\0}{\\"')) + text[at + 1 :]
    if action == 6:
        return text[:at] + draw.choice([" ", "\n", "\t", "\r\n", "\ufeff", "\u2028", "-", "not "]) + text[at:]
    if action == 7:
        return text[:at] + text[at + draw.choice([1, 2, 10]) :]
    if action == 8:
        lines[i], lines[j] = lines[j], lines[i]
    elif action == 9:
        lines.insert(j, lines[i])
    elif action == 10:
        del lines[i]
    else:
        sentence = lines[i].split(" ")
        draw.shuffle(sentence)
        lines[i] = " ".join(sentence)
    return "\n".join(lines)


# --- documents that are forged -----------------------------------------------------------------------

ACCEPTED = ("holds", INCOMPLETE)
"""The verdicts that come with exit code 0."""


@dataclass(frozen=True)
class Document:
    """A document to forge.

    Attributes:
        make: Return its text.
        assess: Raise AssertionError unless the text and its verdict are true, which it computes by other code.
        forge: Return the text with an edit of its data, from a random generator and the text.
        cost: The time that checking takes, relative to the fastest documents.
        lies: Patterns and replacements that ``assess`` must detect.
    """

    make: Callable[[], str]
    assess: Callable[[str, dict[str, Any]], None]
    forge: Callable[[random.Random, str], str]
    lies: list[tuple[str, str]]
    cost: int = 1


def count_codes(name, document, mutants, seed, tmp_path, capsys):
    """Verify altered documents, assess each that is accepted, and return the exit codes with counts."""
    text, draw, codes, path = document.make(), random.Random(f"{name} {seed}"), Counter(), tmp_path / "document"
    path.write_text(text)
    assert exit_code(["verify", str(path)]) == 0, capsys.readouterr()
    capsys.readouterr()
    for _ in range(mutants):
        found = scratched(draw, text) if draw.random() < 0.35 else document.forge(draw, text)
        path.write_bytes(found.encode("utf-8", "surrogatepass"))
        code = exit_code(["verify", str(path), "--json"])
        output = capsys.readouterr()
        assert "Traceback" not in output.err and "report it" not in output.err
        assert (code in (2, 3, 5)) == (output.err.count("\n") == 1) and (code == 2) == (not output.out), (
            code,
            output.err,
        )
        assert code == 2 or (json.loads(output.out)["verdict"] in ACCEPTED) == (code == 0)
        changed = found.replace("\r\n", "\n").rstrip("\n") != text.rstrip("\n")
        codes[f"accepted, {'changed' if changed else 'the same'}" if code == 0 else f"exit {code}"] += 1
        if code == 0 and changed:
            try:
                document.assess(found, json.loads(output.out))
            except Exception as error:
                raise AssertionError(f"accepted although it is not true:\n{found}") from error
    return codes


def tampering_tests(documents):
    """Return three tests of these documents, by name: of few and of many altered documents, and of false statements."""

    @pytest.mark.parametrize("name", documents)
    def test_accepted_forgeries_are_true(name, tmp_path, capsys):
        mutants = 60 // documents[name].cost
        codes = count_codes(name, documents[name], mutants, 1, tmp_path, capsys)
        assert codes["exit 2"] + codes["exit 1"] > mutants / 3 and codes["exit 2"] > mutants / 8

    @pytest.mark.slow
    @pytest.mark.parametrize("name", documents)
    def test_thousands_of_accepted_forgeries_are_true(name, tmp_path, capsys):
        codes = count_codes(name, documents[name], 3000, 2, tmp_path, capsys)
        with capsys.disabled():
            print(f"\n{name}: {json.dumps(dict(sorted(codes.items())))}")

    @pytest.mark.parametrize("name", documents)
    def test_assess_detects_false_statements(name, tmp_path, capsys):
        document = documents[name]
        text = document.make()
        (tmp_path / "document").write_text(text)
        capsys.readouterr()
        assert exit_code(["verify", str(tmp_path / "document"), "--json"]) == 0
        verdict = json.loads(capsys.readouterr().out)
        document.assess(text, verdict)
        for old, new in document.lies:
            assert re.search(old, text)
            with pytest.raises(AssertionError):
                document.assess(re.sub(old, new, text), verdict)

    return (
        test_accepted_forgeries_are_true,
        test_thousands_of_accepted_forgeries_are_true,
        test_assess_detects_false_statements,
    )
